// The passes over memory that a BERT layer makes between its matrix products, each written as one pass.
//
// float or bfloat16 in memory, float in registers. Dropout masks are functions of (seed, stream, index) and are computed again
// in the backward pass: nothing is stored, and plain.py computes the same masks with torch operations.
// Written as plain loops over blocks that the compiler turns into vector instructions.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using at::Tensor;
constexpr int64_t kBlock = 32;  // elements of a block: two AVX-512 registers of floats
using bf16 = uint16_t;

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float load(const float* p) { return *p; }
inline float load(const bf16* p) { return bits_to_float(uint32_t(*p) << 16); }
inline void store(float* p, float value) { *p = value; }
inline void store(bf16* p, float value) {  // to the nearest, ties to even
  const uint32_t bits = float_to_bits(value);
  *p = bf16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// exp(x) to 2 units in the last place: 2^n (n whole) times a polynomial on |r| <= ln(2) / 2.
inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  return y * bits_to_float(uint32_t(int32_t(n) + 127) << 23);
}

// SplitMix64's finaliser: keys that differ in one bit become keys that differ in half of them.
inline uint64_t mix(uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

// Dropout: 31 bits of a hash of the element's index under a mixed key. The steps are those of Wellons' "lowbias32".
struct Dropout {
  uint32_t first, second, threshold;
  float scale;
  Dropout(int64_t seed, int64_t stream, double p)
      : threshold(uint32_t(p * 2147483648.0)), scale(float(1.0 / (1.0 - p))) {
    const uint64_t key = mix(uint64_t(seed) + uint64_t(stream + 1) * 0x9e3779b97f4a7c15u);
    first = uint32_t(key);
    second = uint32_t(key >> 32);
  }
  bool on() const { return threshold > 0; }
  // What to multiply element `index` with: 0 or 1 / (1 - p).
  inline float factor(uint32_t index) const {
    uint32_t x = index ^ first;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x ^= second;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (x & 0x7fffffffu) >= threshold ? scale : 0.0f;
  }
};

// f(j, lane) for j = 0 .. count - 1. The inner loop's constant length is what the compiler needs to vectorise it.
template <typename F>
inline void each(int64_t count, F f) {
  int64_t start = 0;
  for (; start + kBlock <= count; start += kBlock)
#pragma GCC ivdep
    for (int64_t lane = 0; lane < kBlock; ++lane) f(start + lane, lane);
  for (; start < count; ++start) f(start, int64_t(0));
}

// One partial result a lane; a sum of many floats is also more exact so.
struct Lanes {
  float values[kBlock];
  explicit Lanes(float start) {
    for (float& value : values) value = start;
  }
  // Halves onto halves: a few vector instructions instead of a chain of 31 additions.
  template <typename F>
  float fold(F join) {
    for (int64_t half = kBlock / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) values[i] = join(values[i], values[i + half]);
    return values[0];
  }
  float sum() {
    return fold([](float a, float b) { return a + b; });
  }
  float max() {
    return fold([](float a, float b) { return a > b ? a : b; });
  }
};
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// e[j] <- exp(e[j] - largest); returns the sum.
inline float exponentials(float* e, int64_t count, float largest) {
  Lanes total(0);
  float* sums = total.values;
  each(count, [=](int64_t j, int64_t lane) {
    e[j] = fast_exp(e[j] - largest);
    sums[lane] += e[j];
  });
  return total.sum();
}

// Rows of a parallel part such that small tensors stay on one thread.
inline int64_t grain(int64_t columns) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)); }

#define DISPATCH(tensor, body)                                                      \
  if ((tensor).scalar_type() == at::kFloat) {                                       \
    using T = float;                                                                \
    body();                                                                         \
  } else {                                                                          \
    TORCH_CHECK((tensor).scalar_type() == at::kBFloat16, "float32 or bfloat16 only"); \
    using T = bf16;                                                                 \
    body();                                                                         \
  }

template <typename T>
constexpr at::ScalarType kType = at::kLong;
template <>
constexpr at::ScalarType kType<float> = at::kFloat;
template <>
constexpr at::ScalarType kType<bf16> = at::kBFloat16;

template <typename T>
T* data(const Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == kType<T>, "a tensor of type ", kType<T>, " is expected, not ", tensor.scalar_type());
  TORCH_CHECK(tensor.is_contiguous(), "contiguous tensors only");
  return reinterpret_cast<T*>(tensor.data_ptr());
}

// Sizes of what a kernel is given, checked once a call: memory beside a tensor is never read or written.
inline void check_size(const Tensor& tensor, int64_t size, const char* name) {
  TORCH_CHECK(tensor.numel() == size, name, " of another size: ", tensor.numel(), " instead of ", size);
}
inline void check_like(const Tensor& tensor, const Tensor& other, const char* name) {
  TORCH_CHECK(tensor.sizes() == other.sizes(), name, " of another shape: ", tensor.sizes(), " instead of ", other.sizes());
}
inline void check_rows(const Tensor& tensor) { TORCH_CHECK(tensor.dim() == 2, "rows have two dimensions, not ", tensor.dim()); }
// Offsets of `batch` sequences of 0 to `length` rows; returns how many rows these are.
inline int64_t check_offsets(const Tensor& offsets, int64_t batch, int64_t length) {
  check_size(offsets, batch + 1, "offsets");
  const auto* off = data<int64_t>(offsets);
  TORCH_CHECK(off[0] == 0, "offsets begin at ", off[0], ", not at 0");
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t tokens = off[row + 1] - off[row];
    TORCH_CHECK(tokens >= 0 && tokens <= length, "a sequence of ", tokens, " rows in ", length, " positions");
  }
  return off[batch];
}
inline void check_keys(const Tensor& keys, int64_t batch, int64_t length) {
  check_size(keys, batch, "keys");
  const auto* seen = data<int64_t>(keys);
  for (int64_t row = 0; row < batch; ++row)
    TORCH_CHECK(seen[row] >= 0 && seen[row] <= length, seen[row], " keys in ", length, " positions");
}

// Per-thread sums of columns, added up at the end in the order of the threads.
class ColumnSums {
 public:
  ColumnSums(int64_t columns) : columns_(columns), sums_(at::zeros({at::get_num_threads(), columns}, at::kFloat)) {}
  float* own() { return sums_.data_ptr<float>() + at::get_thread_num() * columns_; }
  Tensor total() const { return sums_.sum(0); }

 private:
  int64_t columns_;
  Tensor sums_;
};

}  // namespace
