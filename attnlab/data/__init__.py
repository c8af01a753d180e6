"""Data: what is read, how it becomes tokens, and how tokens become batches.

    tasks        copy, reversal, sorting, duplication: endless, seeded, made in code
    dates        dates written in many ways → ISO, with known alignments
    files        aligned files, TSV and plain text, prepared once by a TFDS builder
    tfds_source  data sets that TFDS has prepared, without TensorFlow
    tokenizers   bytes, characters and numbers
    subwords     SentencePiece, trained on the training split
    windows      windows over one long text, which may stay on disk
    batching     endless batches for training, finite ones for evaluation

Below them: lines (of text files), cache, texts (records as strings), tfrecord, encoding, pools (the
resumable iterator), filling (of batches) and parts (of a batch, one of several processes'). A
source is random access: len() and [i] → a dictionary {"source", "target"} or {"text"} of strings.
"""
