"""A checkpoint as an ONNX model that needs neither torch nor this project, measured beside the checkpoint on real inputs.

======================  ======================================================================
file                    what it holds
======================  ======================================================================
arguments.py            the settings, and what can be refused at once
heads.py                what goes into and comes out of each head; the stock class that is exported
graphs.py               torch.onnx
quantization.py         int8 by onnxruntime
runners.py              checkpoint and session behind one call
real_inputs.py          on what they are compared: where that lies
task_inputs.py          ... the validation splits of a task, or inputs without labels
pretraining_inputs.py   ... held-out pairs, or texts
comparison.py           differences of the outputs, scores, equal predictions
speed.py                examples a second, taking turns
report.py               export.json and export.md
export.py               the whole way
examples/               a script for each head, which is put beside the model
======================  ======================================================================
"""
