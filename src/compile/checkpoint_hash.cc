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

Status CheckHash(const Checkpoint& checkpoint, const std::string& sha256, const std::string& path,
                 const std::string& made, const std::string& advice) {
  HEXPORT_ASSIGN_OR_RETURN(const std::string hash, HashCheckpoint(checkpoint));
  if (hash == sha256) return OkStatus();
  return FailedPrecondition(path + ": not the checkpoint that " + made + ": expected SHA-256 " +
                            sha256.substr(0, 16) + "..., got " + hash.substr(0, 16) + "...; " +
                            advice);
}

}  // namespace hexport::compile
