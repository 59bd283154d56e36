#include "compile/bundle_model.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "graph/graph.h"
#include "graph/onnx_io.h"
#include "quant/channel_folds.h"
#include "quant/stored_weights.h"

namespace hexport::compile {
namespace {

namespace fs = std::filesystem;

// Gone when it goes out of scope; files that are mapped stay readable.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> Create() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "hexport-XXXXXX").string();
    if (error) return ErrnoStatus(error.value(), "temporary folder");
    if (mkdtemp(name.data()) == nullptr) return ErrnoStatus(errno, name);
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(name));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {}
  const fs::path path_;
};

}  // namespace

Result<std::unique_ptr<quant::QuantizedModel>> OpenBundleModel(const fs::path& bundle,
                                                               const bundle::Manifest& manifest) {
  std::error_code ignored;
  const fs::path facts = bundle / kQuantFolder;
  if (!fs::exists(facts / "quant.json", ignored) || manifest.graphs.empty()) {
    return FailedPrecondition(bundle.string() + ": expected " + std::string(kQuantFolder) +
                              "/quant.json, which this bundle's hexport (" +
                              manifest.hexport_version + ") did not write; build it again");
  }
  HEXPORT_ASSIGN_OR_RETURN(const std::unique_ptr<ScratchFolder> scratch, ScratchFolder::Create());
  HEXPORT_ASSIGN_OR_RETURN(const graph::Graph qdq,
                           graph::ReadOnnx(bundle / manifest.graphs.front().qdq_model));
  HEXPORT_RETURN_IF_ERROR(quant::WriteStoredWeights(qdq, scratch->path() / "weights.safetensors"));
  for (const char* name : {"quant.json", quant::kFoldsFile}) {
    if (fs::exists(facts / name, ignored))
      HEXPORT_RETURN_IF_ERROR(LinkOrCopy(facts / name, scratch->path() / name));
  }
  return quant::QuantizedModel::Open(scratch->path());
}

}  // namespace hexport::compile
