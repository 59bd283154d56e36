#include "compile/checkpoint_hash.h"

#include "base/sha256.h"

namespace hexport::compile {

Result<std::string> HashCheckpoint(const Checkpoint& checkpoint) {
  Sha256 hash;
  for (const std::filesystem::path& file : checkpoint.Files()) {
    HEXPORT_ASSIGN_OR_RETURN(std::string digest, Sha256File(file));
    hash.Update(file.filename().string() + " " + digest + "\n");
  }
  return hash.HexDigest();
}

}  // namespace hexport::compile
