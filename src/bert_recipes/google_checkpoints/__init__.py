"""Checkpoints of google-research/bert to folders in Hub form, and back.

==================  ============================================================================
file                what it holds
==================  ============================================================================
names.py            the original's variables beside the names that stock transformers has for them
configuration.py    bert_config.json to config.json and back
location.py         where the files of an original checkpoint lie, and what their folder's name says
to_hub.py           `convert_to_hub`
to_tensorflow.py    `convert_to_tensorflow`
weights_file.py     model.safetensors: written and read one tensor at a time
==================  ============================================================================

Nothing is changed on the way but the names and the orientation of matrices: there and back again is the same bit for bit.
"""
