"""The demo: trains, evaluates and uses a small BERT on the documentation that comes with Python.

run                  its stages: start here
recipe, families     what it trains, and the task that it fine-tunes on
page                 its report
"""
