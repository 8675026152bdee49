// What an attention layer does between its products.
#include "common.h"

namespace {

// Heads: packed rows (T, n * heads * d) <-> (n, B, heads, S, d) with zeros at the pads.

Tensor split_heads(const Tensor& packed, const std::optional<Tensor>& bias, const Tensor& offsets, int64_t heads,
                   int64_t length, int64_t parts) {
  check_rows(packed);
  TORCH_CHECK(offsets.numel() > 0 && heads > 0 && parts > 0, "no sequences, heads or parts");
  const int64_t batch = offsets.numel() - 1, width = packed.size(1), size = width / parts / heads;
  TORCH_CHECK(size * parts * heads == width, width, " columns are no ", parts, " parts of ", heads, " heads");
  TORCH_CHECK(packed.size(0) == check_offsets(offsets, batch, length), "rows of another number");
  if (bias.has_value()) check_size(*bias, width, "bias");
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

Tensor merge_heads_(Tensor rows, const Tensor& split, const Tensor& offsets) {
  TORCH_CHECK(split.dim() == 5 && rows.dim() == 2, "rows and heads of other dimensions");
  const int64_t parts = split.size(0), batch = split.size(1), heads = split.size(2), length = split.size(3),
                size = split.size(4), width = parts * heads * size;
  const auto* off = data<int64_t>(offsets);
  const int64_t count = check_offsets(offsets, batch, length);
  TORCH_CHECK(rows.size(0) == count && rows.size(1) == width, "rows of another shape");
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* in = data<T>(split);
    T* result = data<T>(rows);
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
  return rows;
}

// Attention probabilities, on scores (B, heads, S, S).

void check_scores(const Tensor& scores, const Tensor& offsets, const Tensor& keys) {
  TORCH_CHECK(scores.dim() == 4 && scores.size(2) == scores.size(3), "scores of another shape: ", scores.sizes());
  check_offsets(offsets, scores.size(0), scores.size(2));
  check_keys(keys, scores.size(0), scores.size(2));
}

// scores -> probabilities in place; returns them after dropout (the same tensor without dropout).
Tensor softmax_dropout_(Tensor scores, const Tensor& offsets, const Tensor& keys, double scaling, int64_t seed,
                        int64_t stream, double p) {
  check_scores(scores, offsets, keys);
  const int64_t batch = scores.size(0), heads = scores.size(1), length = scores.size(2);
  const Dropout dropout(seed, stream, p);
  Tensor out = dropout.on() ? at::empty_like(scores) : scores;
  const auto *off = data<int64_t>(offsets), *seen = data<int64_t>(keys);
  const float scale = float(scaling);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* values = data<T>(scores);
    T* dropped = data<T>(out);
    at::parallel_for(0, batch * heads * length, grain(length), [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(length + kBlock);
      float* e = buffer.data();
      for (int64_t row = begin; row < end; ++row) {
        const int64_t item = row / length / heads, tokens = seen[item];
        T* x = values + row * length;
        T* y = dropped + row * length;
        if (row % length >= off[item + 1] - off[item]) {
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
Tensor softmax_dropout_backward_(Tensor grad, const Tensor& probabilities, const Tensor& offsets, const Tensor& keys,
                                 double scaling, int64_t seed, int64_t stream, double p) {
  check_scores(grad, offsets, keys);
  check_like(probabilities, grad, "probabilities");
  const int64_t batch = grad.size(0), heads = grad.size(1), length = grad.size(2);
  const Dropout dropout(seed, stream, p);
  const auto *off = data<int64_t>(offsets), *seen = data<int64_t>(keys);
  const float scale = float(scaling);
  auto run = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* gradients = data<T>(grad);
    const T* values = data<T>(probabilities);
    at::parallel_for(0, batch * heads * length, grain(length), [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(length + kBlock);
      float* own = buffer.data();
      for (int64_t row = begin; row < end; ++row) {
        const int64_t item = row / length / heads, tokens = seen[item];
        T* g = gradients + row * length;
        const T* x = values + row * length;
        if (row % length >= off[item + 1] - off[item]) {
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

}  // namespace

TORCH_LIBRARY_FRAGMENT(bert_recipes, module) {
  module.def("split_heads", TORCH_FN(split_heads));
  module.def("merge_heads_", TORCH_FN(merge_heads_));
  module.def("softmax_dropout_", TORCH_FN(softmax_dropout_));
  module.def("softmax_dropout_backward_", TORCH_FN(softmax_dropout_backward_));
  module.def("dropout", TORCH_FN(dropout));
}
