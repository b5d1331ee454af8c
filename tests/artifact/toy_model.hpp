// A model directory in memory that tests can change and write out again.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/safetensors.hpp"
#include "base/json.hpp"
#include "scratch.hpp"

namespace lockstep::artifact {

struct ToyTensor {
  DType dtype = DType::BF16;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

struct ToyFile {
  std::map<std::string, ToyTensor> tensors;
  std::map<std::string, std::string> metadata;
};

class ToyModel {
 public:
  Json config;
  std::map<std::string, ToyFile> files;
  std::map<std::string, std::string> texts;  ///< other files: index, runtime

  /// `name`: "toy-hf" or "toy-pack".
  static ToyModel load(const std::string& name) {
    ToyModel model;
    const std::filesystem::path directory = std::filesystem::path(LOCKSTEP_TEST_DATA) / name;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const std::string file = entry.path().filename().string();
      if (file == "golden.safetensors" || file == "meta.json") continue;
      if (entry.path().extension() == ".safetensors") {
        model.files[file] = load_file(entry.path());
      } else {
        model.texts[file] = *read_file(entry.path(), 1 << 24);
      }
    }
    model.config = *parse_json(model.texts.at("config.json"), "config.json");
    model.texts.erase("config.json");
    return model;
  }

  void write(const std::filesystem::path& directory) const {
    std::filesystem::create_directories(directory);
    write_bytes(directory / "config.json", config.dump());
    for (const auto& [name, text] : texts) write_bytes(directory / name, text);
    for (const auto& [name, file] : files) {
      write_bytes(directory / name, encode(file));
    }
  }

  /// Stores the experts of these layers as [E, in, out], as some exports do.
  void transpose_experts(const std::vector<std::string>& layers) {
    for (const std::string& layer : layers) {
      transpose(at(layer + "mlp.experts.gate_up_proj"));
      transpose(at(layer + "mlp.experts.down_proj"));
    }
  }

  /// Writes to a fresh directory and opens it. Matrix views die with the directory; keep `scratch`.
  Result<Artifact> open(const Scratch& scratch) const {
    write(scratch.path());
    return Artifact::open(scratch.path());
  }

  /// The file that holds a tensor, and the tensor.
  ToyFile& file_of(const std::string& tensor) {
    for (auto& [name, file] : files) {
      if (file.tensors.contains(tensor)) return file;
    }
    throw std::runtime_error("no tensor " + tensor);
  }
  ToyTensor& at(const std::string& tensor) { return file_of(tensor).tensors.at(tensor); }
  void erase(const std::string& tensor) { file_of(tensor).tensors.erase(tensor); }

 private:
  /// The bytes of a safetensors file, without the flush to disk that the real writer does.
  static std::string encode(const ToyFile& file) {
    Json header = Json::object();
    if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
    std::string data;
    for (const auto& [name, tensor] : file.tensors) {
      const std::size_t end = data.size() + tensor.bytes.size();
      header[name] = {
          {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {data.size(), end}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data;
  }

  static void transpose(ToyTensor& tensor) {
    const auto count = static_cast<std::size_t>(tensor.shape[0]), rows = static_cast<std::size_t>(tensor.shape[1]),
               cols = static_cast<std::size_t>(tensor.shape[2]);
    std::string out(tensor.bytes.size(), '\0');
    for (std::size_t e = 0; e < count; ++e) {
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < cols; ++c) {
          std::memcpy(&out[2 * ((e * cols + c) * rows + r)], &tensor.bytes[2 * ((e * rows + r) * cols + c)], 2);
        }
      }
    }
    tensor.bytes = out;
    std::swap(tensor.shape[1], tensor.shape[2]);
  }

  static ToyFile load_file(const std::filesystem::path& path) {
    ToyFile result;
    const auto file = SafetensorsFile::open(path);
    if (!file) throw std::runtime_error(file.error().message);
    result.metadata = file->metadata();
    for (const TensorInfo& tensor : file->tensors()) {
      const auto data = file->data(tensor);
      result.tensors[tensor.name] = {tensor.dtype, tensor.shape,
                                     std::string(reinterpret_cast<const char*>(data.data()), data.size())};
    }
    return result;
  }
};

}  // namespace lockstep::artifact
