"""The models: stock names and state-dict keys, exact losses.

- `bert`: `BertForPreTraining`, and what all members have in common; `family`, `electra`: the other
  members; `checkpoints`: all of them by name, opened and grown; `sizes`: their configurations.
- `bert_model`: the encoders, with stock layers or, where `packed_support` allows it, with
  `packed_encoder` on the rows of `padding_free`.
- `encoder_layer` with `kernels`: the layers of a CPU; `compiled_layers` with `packed_attention`:
  those of a GPU. Both read stock's weights through `stock_layers` and `embeddings`.
- `vocabulary_loss`: the masked-LM loss without logits.
"""
