// Synthetic models: slices, statistics, files equal to memory, and the sizes of the named geometries.
#include "artifact/synth.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "artifact/affine_quantiser.hpp"
#include "artifact/pack_plan.hpp"
#include "artifact/synth_geometry.hpp"
#include "artifact/synth_matrix.hpp"
#include "artifact/synth_values.hpp"
#include "artifact/synth_view.hpp"
#include "base/file.hpp"
#include "base/sha256.hpp"
#include "numerics/philox.hpp"
#include "numerics/synthetic.hpp"
#include "scratch.hpp"
#include "support/random_model.hpp"

namespace lockstep::artifact {
namespace {

SynthModel named(const std::string& geometry, const std::string& recipe, std::uint64_t seed) {
  return {*synth_geometry(geometry), *find_recipe(recipe), seed};
}

TEST(SynthValues, BytesAreThoseOfTheGenerator) {
  // SHA-256("7 a.weight") begins with these bytes.
  const std::string digest = sha256_hex("7 a.weight");
  const std::uint64_t key = synth_key(7, "a.weight");
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ((key >> (8 * i)) & 255U, std::stoul(digest.substr(2 * i, 2), nullptr, 16));
  }
  constexpr std::uint64_t kBlock = (std::uint64_t{5} << 32) + 3;
  const numerics::PhiloxBlock block =
      numerics::philox4x32({{3, 5, 0, 0}}, static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
  std::array<std::byte, 16> bytes{};
  synth_bytes(key, kBlock * 16, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), block.word, 16), 0);
}

TEST(SynthValues, AnySliceOfAnyPlaneCanBeMadeAlone) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::array bits{0, 2, 3, 4, 5, 6, 8};
    const std::array groups{32, 64, 128};
    const int chosen = bits[random() % bits.size()];
    const auto precision =
        chosen == 0 ? std::nullopt : std::optional(Precision{chosen, groups[random() % groups.size()]});
    const SynthMatrix matrix("m", random() % 60 + 1, 128 * (random() % 8 + 1), precision, seed);
    ThreadPool pool(3);
    for (std::size_t plane = 0; plane < matrix.planes().size(); ++plane) {
      std::vector<std::byte> whole(matrix.planes()[plane].bytes);
      matrix.fill(plane, 0, whole, pool);
      for (int slice = 0; slice < 20; ++slice) {
        const std::size_t begin = random() % (whole.size() / 2) * 2;
        std::vector<std::byte> part((random() % ((whole.size() - begin) / 2) + 1) * 2);
        matrix.fill(plane, begin, part);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, part.size()), 0) << "plane " << plane;
      }
    }
  }
}

TEST(SynthValues, WhatADeviceIsGivenMakesThePlanes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int bits = std::array{0, 2, 3, 4, 5, 6, 8}[random() % 7];
    const auto precision = bits == 0 ? std::nullopt : std::optional(Precision{bits, 32});
    const SynthMatrix matrix("layers.1.o_proj", random() % 60 + 1, 128, precision, seed);
    const SynthSource source = matrix.source();
    const auto halfword = [](std::uint64_t key, std::size_t i) {
      const numerics::PhiloxBlock block =
          numerics::philox4x32({{static_cast<std::uint32_t>(i / 8), 0, 0, 0}}, static_cast<std::uint32_t>(key),
                               static_cast<std::uint32_t>(key >> 32));
      return static_cast<std::uint16_t>(block.word[i % 8 / 2] >> (16 * (i % 2)));
    };
    for (std::size_t plane = 0; plane < matrix.planes().size(); ++plane) {
      std::vector<std::uint16_t> words(matrix.planes()[plane].bytes / 2);
      matrix.fill(plane, 0, std::as_writable_bytes(std::span(words)));
      for (std::size_t i = 0; i < words.size(); ++i) {
        const std::uint16_t h = halfword(plane == 0 ? source.weight_key : source.scale_key, i);
        std::uint16_t expected = h;
        if (!precision) expected = numerics::synthetic_weight(h, source.unit);
        if (plane > 0) expected = numerics::synthetic_scale(h, source.step);
        if (plane == 2) expected = numerics::synthetic_bias(expected, source.middle);
        ASSERT_EQ(words[i], expected) << "plane " << plane << ", halfword " << i;
      }
    }
  }
}

/// Mean and deviation of all weights of a matrix stack.
std::pair<double, double> moments(const MatrixView& matrix) {
  double sum = 0, squares = 0;
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t index = 0; index < matrix.count; ++index) {
    for (std::int64_t r = 0; r < matrix.rows; ++r) {
      read_row(matrix, index, r, row.data());
      for (const float x : row) {
        sum += x;
        squares += static_cast<double>(x) * x;
      }
    }
  }
  const auto n = static_cast<double>(matrix.count * matrix.rows * matrix.cols);
  return {sum / n, std::sqrt(squares / n - sum / n * sum / n)};
}

TEST(Synth, WeightsAreCentredWithTheWantedDeviation) {
  std::size_t seen = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Artifact model = test::random_model(seed);
    for (const MatrixPart& part : walk_model(model.view()).matrices) {
      const auto n = static_cast<double>(part.matrix->count * part.matrix->rows * part.matrix->cols);
      if (n < 2000) continue;
      const auto [mean, deviation] = moments(*part.matrix);
      const double wanted = synth_deviation(part.module, part.matrix->cols);
      EXPECT_NEAR(deviation / wanted, 1, 0.02 + 6 / std::sqrt(n)) << part.module;
      EXPECT_NEAR(mean / wanted, 0, 0.01 + 6 / std::sqrt(n)) << part.module;
      ++seen;
    }
  }
  EXPECT_GT(seen, 100U);
}

void expect_same_plane(const std::byte* a, const std::byte* b, std::size_t bytes, const std::string& what) {
  ASSERT_EQ(a == nullptr, b == nullptr) << what;
  if (a != nullptr) {
    ASSERT_EQ(std::memcmp(a, b, bytes), 0) << what;
  }
}

void expect_same(const MatrixView& a, const MatrixView& b, const std::string& what) {
  ASSERT_EQ(std::tie(a.count, a.rows, a.cols, a.quantised, a.bits, a.group, a.matrix_stride),
            std::tie(b.count, b.rows, b.cols, b.quantised, b.bits, b.group, b.matrix_stride))
      << what;
  const auto rows = static_cast<std::size_t>(a.count * a.rows);
  if (!a.quantised) {
    expect_same_plane(a.data, b.data, rows * static_cast<std::size_t>(a.cols) * 2, what);
    return;
  }
  expect_same_plane(a.codes, b.codes, rows * a.code_row_bytes(), what);
  expect_same_plane(a.scales, b.scales, rows * a.scale_row_bytes(), what);
  expect_same_plane(a.biases, b.biases, rows * a.scale_row_bytes(), what);
}

void expect_same(const ModelView& a, const ModelView& b) {
  const ModelParts left = walk_model(a), right = walk_model(b);
  ASSERT_EQ(left.matrices.size(), right.matrices.size());
  ASSERT_EQ(left.vectors.size(), right.vectors.size());
  for (std::size_t i = 0; i < left.matrices.size(); ++i) {
    ASSERT_EQ(left.matrices[i].module, right.matrices[i].module);
    expect_same(*left.matrices[i].matrix, *right.matrices[i].matrix, left.matrices[i].module);
  }
  for (std::size_t i = 0; i < left.vectors.size(); ++i) {
    ASSERT_EQ(left.vectors[i].tensor, right.vectors[i].tensor);
    ASSERT_EQ(*left.vectors[i].values, *right.vectors[i].values) << left.vectors[i].tensor;
  }
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    ASSERT_EQ(a.layers[i].ple.has_value(), b.layers[i].ple.has_value());
    if (!a.layers[i].ple) continue;
    const PleView &left_ple = *a.layers[i].ple, &right_ple = *b.layers[i].ple;
    ASSERT_EQ(left_ple.hash.multipliers, right_ple.hash.multipliers);
    ASSERT_EQ(left_ple.hash.sizes, right_ple.hash.sizes);
    ASSERT_EQ(left_ple.hash.offsets, right_ple.hash.offsets);
    expect_same(left_ple.table.table.value(), right_ple.table.table.value(), "n-gram table");
  }
}

TEST(Synth, FilesHoldWhatMemoryHolds) {
  for (const std::string& recipe : recipe_names()) {
    for (unsigned seed = 1; seed < 5; ++seed) {
      SCOPED_TRACE(recipe + ", seed " + std::to_string(seed));
      const Scratch scratch;
      SynthModel model = named("toy", recipe, seed);
      if (seed > 1) model.config = *parse_ordered_json(test::random_geometry(seed).dump(), "geometry");
      SynthOptions options;
      options.threads = seed;
      if (seed == 2) options.shard_bytes = 100'000;
      const auto written = write_synthetic(model, scratch / "model", options);
      ASSERT_TRUE(written) << written.error().message;
      const auto file = Artifact::open(scratch / "model");
      ASSERT_TRUE(file) << file.error().message;
      EXPECT_TRUE(file->warnings().empty()) << file->warnings().front();
      const auto memory = make_synthetic(model, 2);
      ASSERT_TRUE(memory) << memory.error().message;
      expect_same(file->view(), memory->view());
    }
  }
}

TEST(Synth, OnDemandEveryMatrixIsWhatMemoryHolds) {
  for (unsigned seed = 1; seed < 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SynthModel model = named("toy", recipe_names()[seed % recipe_names().size()], seed);
    if (seed > 1) model.config = *parse_ordered_json(test::random_geometry(seed).dump(), "geometry");
    const auto memory = make_synthetic(model, 1);
    auto demand = make_synthetic_on_demand(model, seed);
    ASSERT_TRUE(memory && demand);
    const ModelParts left = walk_model(memory->view()), right = walk_model(demand->view());
    ASSERT_EQ(left.matrices.size(), right.matrices.size());
    for (std::size_t i = 0; i < left.matrices.size(); ++i) {
      const MatrixView& shape = *right.matrices[i].matrix;
      EXPECT_TRUE(shape.data == nullptr && shape.codes == nullptr) << shape.name;
      std::vector<std::byte> data;
      expect_same(*left.matrices[i].matrix, demand->readable(shape, data), shape.name);
    }
    demand->make_ready();
    for (std::size_t i = 0; i < memory->view().layers.size(); ++i) {
      if (!memory->view().layers[i].ple) continue;
      expect_same(*memory->view().layers[i].ple->table.table, demand->view().layers[i].ple->table.table.value(),
                  "table");
    }
  }
}

TEST(Synth, SeedsMakeDifferentModels) {
  const auto one = make_synthetic(named("toy", "bare", 1)), two = make_synthetic(named("toy", "bare", 2));
  ASSERT_TRUE(one && two);
  const MatrixView &a = one->view().head, &b = two->view().head;
  EXPECT_NE(std::memcmp(a.codes, b.codes, 1000), 0);
  EXPECT_NE(std::memcmp(a.scales, b.scales, 1000), 0);
  EXPECT_NE(one->view().mixer.norm, two->view().mixer.norm);
}

/// All values of the planned files: weights of matrices and rows of the table.
std::uint64_t planned_values(const PackPlan& plan, bool table, bool draft) {
  std::uint64_t values = 0;
  for (const PlannedFile& file : plan.files) {
    const bool is_table = file.name == "ngram-table.safetensors", is_draft = file.name == "mtp.safetensors";
    if (is_table != table || is_draft != draft) continue;
    for (const PlannedMatrix& matrix : file.matrices) {
      values += static_cast<std::uint64_t>(matrix.source->count * matrix.rows() * matrix.source->cols);
    }
  }
  return values;
}

ModelView outline(const std::string& geometry) {
  const Json config = *parse_json(synth_geometry(geometry)->dump(), geometry);
  return *synth_view(*parse_config(config), 1, matrix_shape);
}

TEST(Synth, NamedGeometriesHaveTheirSizes) {
  const Recipe bare = *find_recipe("bare");
  const ModelView view = outline("flash-next"), mid = outline("mid");
  const PackPlan published = *plan_pack(view, bare, std::uint64_t{4} << 30);
  EXPECT_NEAR(static_cast<double>(planned_values(published, false, false)), 125.744e9, 0.01e9);
  EXPECT_EQ(planned_values(published, true, false), std::uint64_t{320'001'536} * 160);
  EXPECT_NEAR(static_cast<double>(planned_values(published, false, true)), 2.607e9, 0.001e9);
  std::uint64_t bytes = 0;
  const PackPlan smaller = *plan_pack(mid, bare, std::uint64_t{4} << 30);
  for (const PlannedFile& file : smaller.files) bytes += file.data_bytes();
  EXPECT_GT(bytes, 3'500'000'000U);
  EXPECT_LT(bytes, 4'500'000'000U);
}

TEST(Synth, RandomGeometriesDiffer) {
  std::set<std::string> geometries;
  std::size_t drafts = 0, tables = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Json geometry = test::random_geometry(seed);
    const auto config = parse_config(geometry);
    ASSERT_TRUE(config) << "seed " << seed << ": " << config.error().message;
    geometries.insert(geometry.dump());
    drafts += static_cast<std::size_t>(config->draft_layers);
    tables += config->ple_layers.size();
  }
  EXPECT_EQ(geometries.size(), 100U);
  EXPECT_GT(drafts, 50U);
  EXPECT_GT(tables, 30U);
  EXPECT_LT(tables, 90U);
}

TEST(Synth, AnInterruptedRunGoesOnWhereItStopped) {
  const Scratch scratch;
  const SynthModel model = named("toy", "bare", 3);
  std::atomic<bool> stop{false};
  SynthOptions options;
  options.shard_bytes = 400'000;
  options.cancel = &stop;
  options.progress = [&](std::uint64_t done, std::uint64_t total) { stop = done > total / 2; };
  const auto interrupted = write_synthetic(model, scratch / "model", options);
  ASSERT_FALSE(interrupted);
  EXPECT_EQ(interrupted.error().kind, ErrorKind::Cancelled);
  EXPECT_FALSE(std::filesystem::exists(scratch / "model"));
  options.cancel = nullptr;
  std::uint64_t last = 0, all = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    all = total;
  };
  const auto finished = write_synthetic(model, scratch / "model", options);
  ASSERT_TRUE(finished) << finished.error().message;
  EXPECT_GT(finished->reused, 0U);
  EXPECT_EQ(last, all);
  EXPECT_EQ(all, finished->bytes);
  expect_same(Artifact::open(scratch / "model")->view(), make_synthetic(model)->view());
  const auto again = write_synthetic(model, scratch / "model", options);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("--force"), std::string::npos);
}

TEST(Synth, TheTokenizerIsPaddedToTheVocabulary) {
  const Scratch scratch;
  const std::filesystem::path demo = std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "models/demo";
  SynthModel model = named("toy", "bare", 1);
  SynthOptions options;
  options.tokenizer = demo;
  ASSERT_TRUE(write_synthetic(model, scratch / "model", options));
  const auto read = [](const std::filesystem::path& directory) {
    return *parse_json(*read_file(directory / "tokenizer.json", 1 << 24), "tokenizer.json");
  };
  const Json own = read(demo), padded = read(scratch / "model");
  std::set<std::int64_t> ids;
  for (const auto& [text, id] : padded["model"]["vocab"].items()) {
    ids.insert(id.get<std::int64_t>());
    const auto known = own["model"]["vocab"].find(text);
    if (known == own["model"]["vocab"].end()) {
      EXPECT_EQ(text, "[PAD" + std::to_string(id.get<std::int64_t>()) + "]");
    } else {
      EXPECT_EQ(*known, id);
    }
  }
  for (const Json& token : padded["added_tokens"]) ids.insert(token["id"].get<std::int64_t>());
  EXPECT_EQ(ids.size(), 6144U);
  EXPECT_EQ(*ids.rbegin(), 6143);
  EXPECT_EQ(padded["model"]["merges"], own["model"]["merges"]);
  model.config["text_config"]["vocab_size"] = 6110;
  const auto refused = write_synthetic(model, scratch / "other", options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("6110"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(std::filesystem::exists(scratch / "other.partial"));
}

TEST(Synth, UnusableGeometriesAreErrors) {
  EXPECT_EQ(synth_geometry("no-such-file").error().kind, ErrorKind::Usage);
  const Scratch scratch;
  write_bytes(scratch / "list.json", "[1]");
  EXPECT_FALSE(synth_geometry((scratch / "list.json").string()));
  SynthModel model = named("toy", "bare", 1);
  model.config["text_config"]["num_key_value_heads"] = 3;
  EXPECT_FALSE(write_synthetic(model, scratch / "model", {}));
  EXPECT_FALSE(make_synthetic(model));
  SynthModel enormous = named("toy", "quality", 1);
  enormous.config["text_config"]["vocab_size"] = 1 << 24;
  enormous.config["text_config"]["hidden_size"] = 1 << 20;
  const auto huge = make_synthetic(enormous);  // some 35 TB
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().kind, ErrorKind::Limit);
}

}  // namespace
}  // namespace lockstep::artifact
