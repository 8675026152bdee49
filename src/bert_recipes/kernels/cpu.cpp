// The passes over memory that a BERT layer makes between its matrix products, each written as one pass.
//
// float or bfloat16 in memory, float in registers. Dropout masks are functions of (seed, stream, index) and are computed again
// in the backward pass: nothing is stored, and plain.py computes the same masks with torch operations.
// Written as plain loops over blocks that the compiler turns into vector instructions.
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
T* data(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "contiguous tensors only");
  return reinterpret_cast<T*>(tensor.data_ptr());
}

// Heads: packed rows (T, n * heads * d) <-> (n, B, heads, S, d) with zeros at the pads.

Tensor split_heads(const Tensor& packed, const std::optional<Tensor>& bias, const Tensor& offsets, int64_t heads,
                   int64_t length, int64_t parts) {
  const int64_t batch = offsets.size(0) - 1, width = packed.size(1), size = width / parts / heads;
  Tensor out = at::empty({parts, batch, heads, length, size}, packed.options());
  const auto* off = data<int64_t>(offsets);
  const float* added = bias.has_value() ? data<float>(*bias) : nullptr;
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = data<T>(packed);
    T* result = data<T>(out);
    at::parallel_for(0, parts * batch * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t head = item % heads, row = item / heads % batch, part = item / heads / batch;
        const int64_t tokens = off[row + 1] - off[row], column = (part * heads + head) * size;
        T* to = result + item * length * size;
        for (int64_t s = 0; s < tokens; ++s) {
          const T* from = in + (off[row] + s) * width + column;
          if (added == nullptr) {
            std::memcpy(to + s * size, from, size * sizeof(T));
          } else {
            T* result = to + s * size;
            const float* own = added + column;
            each(size, [=](int64_t j, int64_t) { store(result + j, load(from + j) + own[j]); });
          }
        }
        std::memset(to + tokens * size, 0, (length - tokens) * size * sizeof(T));
      }
    });
  };
  DISPATCH(packed, [&] { run(static_cast<T*>(nullptr)); });
  return out;
}

Tensor merge_heads(const Tensor& split, const Tensor& offsets, int64_t total) {
  const int64_t parts = split.size(0), batch = split.size(1), heads = split.size(2), length = split.size(3),
                size = split.size(4), width = parts * heads * size;
  Tensor out = at::empty({total, width}, split.options());
  const auto* off = data<int64_t>(offsets);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = data<T>(split);
    T* result = data<T>(out);
    at::parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t s = 0; s < off[row + 1] - off[row]; ++s)
          for (int64_t column = 0; column < parts * heads; ++column) {
            const int64_t part = column / heads, head = column % heads;
            std::memcpy(result + (off[row] + s) * width + column * size,
                        in + (((part * batch + row) * heads + head) * length + s) * size, size * sizeof(T));
          }
    });
  };
  DISPATCH(split, [&] { run(static_cast<T*>(nullptr)); });
  return out;
}

// Attention probabilities, on scores (B, heads, S, S).

// scores -> probabilities in place; returns them after dropout (the same tensor without dropout).
Tensor softmax_dropout_(Tensor scores, const Tensor& offsets, double scaling, int64_t seed, int64_t stream, double p) {
  const int64_t batch = scores.size(0), heads = scores.size(1), length = scores.size(2);
  const Dropout dropout(seed, stream, p);
  Tensor out = dropout.on() ? at::empty_like(scores) : scores;
  const auto* off = data<int64_t>(offsets);
  const float scale = float(scaling);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* values = data<T>(scores);
    T* dropped = data<T>(out);
    at::parallel_for(0, batch * heads * length, grain(length), [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(length + kBlock);
      float* e = buffer.data();
      for (int64_t row = begin; row < end; ++row) {
        const int64_t item = row / length / heads, tokens = off[item + 1] - off[item];
        T* x = values + row * length;
        T* y = dropped + row * length;
        if (row % length >= tokens) {
          std::memset(x, 0, length * sizeof(T));
          std::memset(y, 0, length * sizeof(T));
          continue;
        }
        Lanes top(kLowest);
        float* largest = top.values;
        each(tokens, [=](int64_t j, int64_t lane) {
          e[j] = load(x + j) * scale;
          largest[lane] = e[j] > largest[lane] ? e[j] : largest[lane];
        });
        const float inverse = 1.0f / exponentials(e, tokens, top.max());
        each(tokens, [=](int64_t j, int64_t) { store(x + j, e[j] * inverse); });
        std::memset(x + tokens, 0, (length - tokens) * sizeof(T));
        if (dropout.on()) {
          const uint32_t first = uint32_t(row * length);
          each(tokens, [=](int64_t j, int64_t) { store(y + j, load(x + j) * dropout.factor(first + uint32_t(j))); });
          std::memset(y + tokens, 0, (length - tokens) * sizeof(T));
        }
      }
    });
  };
  DISPATCH(scores, [&] { run(static_cast<T*>(nullptr)); });
  return out;
}

// Gradient of the dropped probabilities -> gradient of the scores, in place; returns the dropped probabilities again.
Tensor softmax_dropout_backward_(Tensor grad, const Tensor& probabilities, const Tensor& offsets, double scaling,
                                 int64_t seed, int64_t stream, double p) {
  const int64_t batch = grad.size(0), heads = grad.size(1), length = grad.size(2);
  const Dropout dropout(seed, stream, p);
  const auto* off = data<int64_t>(offsets);
  const float scale = float(scaling);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* gradients = data<T>(grad);
    const T* values = data<T>(probabilities);
    at::parallel_for(0, batch * heads * length, grain(length), [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(length + kBlock);
      float* own = buffer.data();
      for (int64_t row = begin; row < end; ++row) {
        const int64_t item = row / length / heads, tokens = off[item + 1] - off[item];
        T* g = gradients + row * length;
        const T* x = values + row * length;
        if (row % length >= tokens) {
          std::memset(g, 0, length * sizeof(T));
          continue;
        }
        const uint32_t first = uint32_t(row * length);
        Lanes total(0);
        float* sums = total.values;
        each(tokens, [=](int64_t j, int64_t lane) {
          const float factor = dropout.on() ? dropout.factor(first + uint32_t(j)) : 1.0f;
          own[j] = load(g + j) * factor;
          sums[lane] += own[j] * load(x + j);
        });
        const float mean = total.sum();
        each(tokens, [=](int64_t j, int64_t) { store(g + j, (own[j] - mean) * load(x + j) * scale); });
        std::memset(g + tokens, 0, (length - tokens) * sizeof(T));
      }
    });
  };
  DISPATCH(grad, [&] { run(static_cast<T*>(nullptr)); });
  return grad;
}

// The same mask once more, out of place: for probabilities in the backward pass and for the embeddings.
Tensor dropout(const Tensor& input, int64_t seed, int64_t stream, double p) {
  const Dropout mask(seed, stream, p);
  if (!mask.on()) return input;
  Tensor out = at::empty_like(input);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* x = data<T>(input);
    T* y = data<T>(out);
    at::parallel_for(0, input.numel(), 16384, [&](int64_t begin, int64_t end) {
      each(end - begin, [=](int64_t j, int64_t) {
        store(y + begin + j, load(x + begin + j) * mask.factor(uint32_t(begin + j)));
      });
    });
  };
  DISPATCH(input, [&] { run(static_cast<T*>(nullptr)); });
  return out;
}

// LayerNorm(residual + dropout(x + bias)): returns the result, the normalised rows, 1 / deviation.
std::vector<Tensor> dropout_add_norm(const Tensor& input, const Tensor& bias, const Tensor& residual, const Tensor& weight,
                                     const Tensor& shift, double epsilon, int64_t seed, int64_t stream, double p) {
  const int64_t rows = input.size(0), width = input.size(1);
  const Dropout dropout(seed, stream, p);
  Tensor out = at::empty_like(input), normal = at::empty_like(input);
  Tensor inverse = at::empty({rows}, input.options().dtype(at::kFloat));
  const float *b = data<float>(bias), *w = data<float>(weight), *c = data<float>(shift);
  float* deviations = data<float>(inverse);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *x = data<T>(input), *r = data<T>(residual);
    T *y = data<T>(out), *n = data<T>(normal);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(width);
      float* z = buffer.data();
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * width;
        const T *own = x + at, *rest = r + at;
        T *result = y + at, *kept = n + at;
        Lanes total(0), square(0);
        float *sums = total.values, *squares = square.values;
        each(width, [=](int64_t j, int64_t lane) {
          const float factor = dropout.on() ? dropout.factor(uint32_t(at + j)) : 1.0f;
          z[j] = load(rest + j) + (load(own + j) + b[j]) * factor;
          sums[lane] += z[j];
        });
        const float mean = total.sum() / float(width);
        each(width, [=](int64_t j, int64_t lane) {
          z[j] -= mean;
          squares[lane] += z[j] * z[j];
        });
        const float rate = 1.0f / std::sqrt(square.sum() / float(width) + float(epsilon));
        deviations[row] = rate;
        each(width, [=](int64_t j, int64_t) {
          const float value = z[j] * rate;
          store(kept + j, value);
          store(result + j, value * w[j] + c[j]);
        });
      }
    });
  };
  DISPATCH(input, [&] { run(static_cast<T*>(nullptr)); });
  return {out, normal, inverse};
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

// Gradients of dropout_add_norm: of the residual, of the input, of weight, shift and bias.
std::vector<Tensor> dropout_add_norm_backward(const Tensor& grad, const Tensor& normal, const Tensor& inverse,
                                              const Tensor& weight, int64_t seed, int64_t stream, double p) {
  const int64_t rows = grad.size(0), width = grad.size(1);
  const Dropout dropout(seed, stream, p);
  Tensor of_residual = at::empty_like(grad), of_input = dropout.on() ? at::empty_like(grad) : of_residual;
  ColumnSums sums(3 * width);
  const float *w = data<float>(weight), *deviations = data<float>(inverse);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T *g = data<T>(grad), *n = data<T>(normal);
    T *dr = data<T>(of_residual), *dx = data<T>(of_input);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      float *dw = sums.own(), *dc = dw + width, *db = dc + width;
      std::vector<float> buffer(2 * width);
      float *gw = buffer.data(), *h = gw + width;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * width;
        const T *gradient = g + at, *kept = n + at;
        T *residual = dr + at, *own = dx + at;
        Lanes total(0), product(0);
        float *sums = total.values, *products = product.values;
        each(width, [=](int64_t j, int64_t lane) {
          const float slope = load(gradient + j), value = load(kept + j);
          dw[j] += slope * value;
          dc[j] += slope;
          gw[j] = slope * w[j];
          h[j] = value;
          sums[lane] += gw[j];
          products[lane] += gw[j] * value;
        });
        const float rate = deviations[row], mean = total.sum() / float(width), slope = product.sum() / float(width);
        each(width, [=](int64_t j, int64_t) {
          const float value = rate * (gw[j] - mean - h[j] * slope);
          const float kept_value = dropout.on() ? value * dropout.factor(uint32_t(at + j)) : value;
          store(residual + j, value);
          store(own + j, kept_value);
          db[j] += kept_value;
        });
      }
    });
  };
  DISPATCH(grad, [&] { run(static_cast<T*>(nullptr)); });
  const Tensor all = sums.total();
  return {of_residual, of_input, all.narrow(0, 0, width), all.narrow(0, width, width), all.narrow(0, 2 * width, width)};
}

// GELU(x + bias), by the tanh formula of the original or by the error function.

struct Gelu {
  float value, slope;
};
inline Gelu gelu_tanh(float x) {
  const float inner = 0.79788456f * (x + 0.044715f * x * x * x);
  const float t = 1.0f - 2.0f / (1.0f + fast_exp(2.0f * inner));
  return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x)};
}
// Abramowitz and Stegun 7.1.26: the error function to 1.5e-7.
inline Gelu gelu_erf(float x) {
  const float z = std::fabs(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z), e = fast_exp(-z * z);
  const float tail =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)))) * e;
  const float phi = x >= 0 ? 1.0f - 0.5f * tail : 0.5f * tail;
  return {x * phi, phi + x * e * 0.39894228f};
}

Tensor bias_gelu(const Tensor& input, const Tensor& bias, bool exact) {
  const int64_t rows = input.size(0), width = input.size(1);
  Tensor out = at::empty_like(input);
  const float* b = data<float>(bias);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* x = data<T>(input);
    T* y = data<T>(out);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * width;
        T* result = y + row * width;
        if (exact) {
          each(width, [=](int64_t j, int64_t) { store(result + j, gelu_erf(load(in + j) + b[j]).value); });
        } else {
          each(width, [=](int64_t j, int64_t) { store(result + j, gelu_tanh(load(in + j) + b[j]).value); });
        }
      }
    });
  };
  DISPATCH(input, [&] { run(static_cast<T*>(nullptr)); });
  return out;
}

// Gradient of the input in place of that of the output; returns the output once more, and the gradient of the bias.
std::vector<Tensor> bias_gelu_backward_(Tensor grad, const Tensor& input, const Tensor& bias, bool exact) {
  const int64_t rows = input.size(0), width = input.size(1);
  Tensor out = at::empty_like(input);
  ColumnSums sums(width);
  const float* b = data<float>(bias);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* x = data<T>(input);
    T *g = data<T>(grad), *y = data<T>(out);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      float* db = sums.own();
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * width;
        T *result = y + row * width, *gradient = g + row * width;
        auto put = [=](int64_t j, const Gelu& gelu) {
          const float own = load(gradient + j) * gelu.slope;
          store(result + j, gelu.value);
          store(gradient + j, own);
          db[j] += own;
        };
        if (exact) {
          each(width, [=](int64_t j, int64_t) { put(j, gelu_erf(load(in + j) + b[j])); });
        } else {
          each(width, [=](int64_t j, int64_t) { put(j, gelu_tanh(load(in + j) + b[j])); });
        }
      }
    });
  };
  DISPATCH(input, [&] { run(static_cast<T*>(nullptr)); });
  return {out, sums.total()};
}

Tensor column_sum(const Tensor& input) {
  const int64_t rows = input.size(0), width = input.size(1);
  ColumnSums sums(width);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* x = data<T>(input);
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      float* own = sums.own();
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * width;
        each(width, [=](int64_t j, int64_t) { own[j] += load(in + j); });
      }
    });
  };
  DISPATCH(input, [&] { run(static_cast<T*>(nullptr)); });
  return sums.total();
}

// Cross-entropy of logits + bias: returns the losses (rows); with `scale` the logits become scale * (softmax - one-hot).
Tensor cross_entropy_(Tensor logits, const Tensor& bias, const Tensor& targets, double scale, bool needs_gradient) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  Tensor losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  const float* b = data<float>(bias);
  const auto* wanted = data<int64_t>(targets);
  float* loss = data<float>(losses);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* values = data<T>(logits);
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(width);
      float* e = buffer.data();
      for (int64_t row = begin; row < end; ++row) {
        T* x = values + row * width;
        Lanes top(kLowest);
        float* largest = top.values;
        each(width, [=](int64_t j, int64_t lane) {
          e[j] = load(x + j) + b[j];
          largest[lane] = e[j] > largest[lane] ? e[j] : largest[lane];
        });
        const float summit = top.max(), own = e[wanted[row]] - summit;
        const float sum = exponentials(e, width, summit);
        loss[row] = std::log(sum) - own;
        if (needs_gradient) {
          const float factor = float(scale) / sum, at_target = e[wanted[row]] * factor - float(scale);
          each(width, [=](int64_t j, int64_t) { store(x + j, e[j] * factor); });
          store(x + wanted[row], at_target);
        }
      }
    });
  };
  DISPATCH(logits, [&] { run(static_cast<T*>(nullptr)); });
  return losses;
}

}  // namespace

TORCH_LIBRARY(bert_recipes, module) {
  module.def("split_heads", TORCH_FN(split_heads));
  module.def("merge_heads", TORCH_FN(merge_heads));
  module.def("softmax_dropout_", TORCH_FN(softmax_dropout_));
  module.def("softmax_dropout_backward_", TORCH_FN(softmax_dropout_backward_));
  module.def("dropout", TORCH_FN(dropout));
  module.def("dropout_add_norm", TORCH_FN(dropout_add_norm));
  module.def("dropout_add_norm_backward", TORCH_FN(dropout_add_norm_backward));
  module.def("bias_gelu", TORCH_FN(bias_gelu));
  module.def("bias_gelu_backward_", TORCH_FN(bias_gelu_backward_));
  module.def("column_sum", TORCH_FN(column_sum));
  module.def("cross_entropy_", TORCH_FN(cross_entropy_));
}
