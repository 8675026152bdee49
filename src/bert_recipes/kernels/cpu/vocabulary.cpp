// The cross-entropy over the vocabulary.
#include "common.h"

namespace {

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

TORCH_LIBRARY_FRAGMENT(bert_recipes, module) {
  module.def("cross_entropy_", TORCH_FN(cross_entropy_));
}
