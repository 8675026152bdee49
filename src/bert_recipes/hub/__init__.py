"""A model goes to the Hub: what is uploaded, whether it may be, and what is done when the network breaks."""
