"""Text to WordPiece ids as in google-research/bert, and training of vocabularies."""
