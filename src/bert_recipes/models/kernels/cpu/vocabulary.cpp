// The cross-entropy over the vocabulary.
#include "common.h"

namespace {

// Cross-entropy of logits + bias: returns the losses (rows) and the gradient of the bias; with `needs_gradient` the logits
// become scale * (softmax - one-hot). Columns after the bias' are filling; a row with a negative target counts for nothing.
std::vector<Tensor> cross_entropy_(Tensor logits, const Tensor& bias, const Tensor& targets, double scale,
                                   bool needs_gradient) {
  check_rows(logits);
  check_size(targets, logits.size(0), "targets");
  const int64_t rows = logits.size(0), stride = logits.size(1), width = bias.size(0);
  TORCH_CHECK(width <= stride, "fewer logits than biases");
  Tensor losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  ColumnSums sums(width);
  const float* b = data<float>(bias);
  const auto* wanted = data<int64_t>(targets);
  float* loss = data<float>(losses);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* values = data<T>(logits);
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(width);
      float *e = buffer.data(), *own = sums.own();
      for (int64_t row = begin; row < end; ++row) {
        T* x = values + row * stride;
        const int64_t target = wanted[row];
        TORCH_CHECK(target < width, "a target outside of the vocabulary");
        if (target < 0) {
          loss[row] = 0.0f;
          if (needs_gradient) std::memset(x, 0, stride * sizeof(T));
          continue;
        }
        Lanes top(kLowest);
        float* largest = top.values;
        each(width, [=](int64_t j, int64_t lane) {
          e[j] = load(x + j) + b[j];
          largest[lane] = e[j] > largest[lane] ? e[j] : largest[lane];
        });
        const float summit = top.max(), at_target = e[target] - summit;
        const float sum = exponentials(e, width, summit);
        loss[row] = std::log(sum) - at_target;
        if (!needs_gradient) continue;
        const float factor = float(scale) / sum;
        e[target] -= sum;
        each(width, [=](int64_t j, int64_t) {
          const float gradient = e[j] * factor;
          own[j] += gradient;
          store(x + j, gradient);
        });
        std::memset(x + width, 0, (stride - width) * sizeof(T));
      }
    });
  };
  DISPATCH(logits, [&] { run(static_cast<T*>(nullptr)); });
  return {losses, sums.total()};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(bert_recipes, module) {
  module.def("cross_entropy_", TORCH_FN(cross_entropy_));
}
