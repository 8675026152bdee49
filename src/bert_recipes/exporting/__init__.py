"""A checkpoint as an ONNX model that needs neither torch nor this project."""
