"""The passes over memory between a BERT layer's matrix products: compiled for this CPU, or with
torch operations.
"""
