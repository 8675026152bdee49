// What a layer does to its rows between two products: dropout, residual and norm; bias and GELU.
#include "common.h"

namespace {

// LayerNorm(residual + dropout(x + bias)): returns the result, the normalized rows, 1 / deviation.
std::vector<Tensor> dropout_add_norm(const Tensor& input, const Tensor& bias, const Tensor& residual, const Tensor& weight,
                                     const Tensor& shift, double epsilon, int64_t seed, int64_t stream, double p) {
  check_rows(input);
  check_like(residual, input, "residual");
  const int64_t rows = input.size(0), width = input.size(1);
  check_size(bias, width, "bias");
  check_size(weight, width, "weight");
  check_size(shift, width, "shift");
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

// Gradients of dropout_add_norm: of the residual, of the input, of weight, shift and bias.
std::vector<Tensor> dropout_add_norm_backward(const Tensor& grad, const Tensor& normal, const Tensor& inverse,
                                              const Tensor& weight, int64_t seed, int64_t stream, double p) {
  check_rows(grad);
  check_like(normal, grad, "normalized rows");
  const int64_t rows = grad.size(0), width = grad.size(1);
  check_size(inverse, rows, "inverse");
  check_size(weight, width, "weight");
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
  check_rows(input);
  const int64_t rows = input.size(0), width = input.size(1);
  check_size(bias, width, "bias");
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
  check_rows(input);
  check_like(grad, input, "gradient");
  const int64_t rows = input.size(0), width = input.size(1);
  check_size(bias, width, "bias");
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
  check_rows(input);
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

}  // namespace

TORCH_LIBRARY_FRAGMENT(bert_recipes, module) {
  module.def("dropout_add_norm", TORCH_FN(dropout_add_norm));
  module.def("dropout_add_norm_backward", TORCH_FN(dropout_add_norm_backward));
  module.def("bias_gelu", TORCH_FN(bias_gelu));
  module.def("bias_gelu_backward_", TORCH_FN(bias_gelu_backward_));
  module.def("column_sum", TORCH_FN(column_sum));
}
