"""Fine-tuning and prediction: one small file for each task, over machinery that knows no task.

    base                                     `Task`, the interface between the two: start here, with sst2 as an example
    registry                                 task names to classes

Tasks:

    cola sst2 mrpc stsb qqp mnli qnli rte wnli
                                             GLUE
    text_classification, text_regression     files of the user's own
    text, classification, regression         what these share: one answer for a text or a pair
    squad                                    SQuAD 1.1 and 2.0: squad_files, squad_windows, squad_metrics
    swag                                     multiple choice of any set: choice_forms, choice_files
    ner                                      tagged words: conll, conll_columns, conll_words, tagging

Files of rows:

    files, tables, csv_records, hub_files    lines; tab-separated; CSV; JSON lines and Parquet
    exported, labelled, typed                GLUE as hubs export it; labels before a text or as a directory; JSON on
                                             standard input
    bad_rows                                 rows that cannot be used

Machinery:

    config                                   the recipe; importable without torch
    finetune, training, stepper, batching    a fine-tuning, its epochs, a step, which rows go together
    saving, runs, results, world             checkpoints, the run directory, what is written, several processes
    search                                   restarts and grids
    trained, predict, metrics, fits          using a trained model; scores; what a model can do
    encoding                                 texts to ids
    input_transforms, transformed            rows as a GPT reads them
    features, feature_*, on_features         a BiLSTM on the features of a frozen model; `fastbert extract`
    fill_mask                                `fastbert fill-mask`
"""
