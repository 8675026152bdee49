"""The passes over memory between a BERT layer's products: compiled for this CPU, or in torch."""
