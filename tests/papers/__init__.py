"""Facts about the models that papers print: counted from our code, and compared with the paper.

The page of them is `experiments/results/tables/report.md`; the tests here keep it true.
"""
