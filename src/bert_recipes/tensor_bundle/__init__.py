"""TensorFlow's checkpoint format of version 2 ("TensorBundle"), read and written without TensorFlow.

A checkpoint PREFIX is PREFIX.index, a LevelDB table from names of variables to messages that say where each lies, and the shards
PREFIX.data-00000-of-00001, which hold nothing but the variables' bytes.

==============  ======================================================================================
file            what it holds
==============  ======================================================================================
table.py        the table: `read_table`, `write_table`
entries.py      the messages in it: header, one entry a variable, slices of a partitioned one
reader.py       `BundleReader`: names, types and shapes at once, values one variable at a time
writer.py       `BundleWriter`: one variable at a time
==============  ======================================================================================

A file comes from anywhere: every length in it is held against the files' own sizes before anything of that length is made, every
checksum is compared, and what is wrong is one `InputError`.
"""

from bert_recipes.tensor_bundle.reader import BundleReader, Variable
from bert_recipes.tensor_bundle.writer import BundleWriter


__all__ = ["BundleReader", "BundleWriter", "Variable"]
