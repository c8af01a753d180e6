"""Data: what is read, how it becomes tokens, and how tokens become batches.

    tasks        copy, reversal, documents that match if they hold the same key: endless, seeded,
                 made in code
    listops      nested lists of digits, by the grammar of Long Range Arena
    labelled     texts with labels, of TSV files
    dates        dates written in many ways → ISO, with known alignments
    files        aligned files and TSV of texts and their translations
    tfds_source  data sets that TFDS has prepared, without TensorFlow
    tokenizers   bytes, characters and numbers
    subwords     SentencePiece, trained on the training split
    windows      windows over one long text, which may stay on disk
    masking      pairs of segments with masked tokens, for BERT's pre-training
    batching     endless batches for training, finite ones for evaluation

Below them: lines (of text files), cache, texts (records as strings), encoding, pools (the resumable
iterator) and parts (of a batch, one of several processes'). A source is random access: len() and
[i] → a dictionary {"source", "target"} or {"text"} of strings.
"""
