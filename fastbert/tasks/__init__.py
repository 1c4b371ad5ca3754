"""Fine-tuning and prediction: one small file per task, on top of machinery that is independent of tasks.

    base                                     `Task`, the interface between the two: start here, with sst2 as an example
    registry                                 task names to classes

Tasks:

    cola sst2 mrpc stsb qqp mnli qnli rte wnli
                                             GLUE
    text_classification, text_multilabel, text_regression
                                             the user's own files
    text, classification, regression         what these share: one label for a text or a pair
    squad                                    SQuAD 1.1 and 2.0: squad_files, squad_answers, squad_windows,
                                             squad_predictions, squad_metrics
    swag                                     any multiple-choice data set: choice_forms, choice_rows, choice_files,
                                             choice_conversions
    ner                                      tagged words: conll, conll_columns, conll_words, tagging
    ner_sentences                            entities in plain sentences: words, conll_or_sentences

Files of rows:

    files, tables, csv_records, hub_files    lines; tab-separated; CSV; JSON lines and Parquet
    table_records, tab_rows                  tab-separated or CSV, by the names of columns; rows with quotes
    exported, class_labels                   GLUE as data-set hubs export it, and what labels mean there
    labelled, typed                          labels before a text or as a directory; JSON on standard input
    label_warnings, parts                    labels that are perhaps not what they are taken for; parts in one table
    beside                                   labels and names of tags in files beside a data file
    column                                   the texts of a file for commands that are no task
    bad_rows                                 rows that cannot be used

Machinery:

    config                                   the recipe; importable without torch
    finetune, training, stepper, batching    a fine-tuning run, its epochs, a step, batches
    layers                                   what is not trained, or at a lower rate
    heads                                    the classes of a model's head, and their rows where it is trained further
    saving, runs, results, world             checkpoints, the run directory, result files, several processes
    search                                   restarts and grids
    trained, predict, metrics, fits          using a trained model; scores; which models a task can use
    encoding, windows                        texts to ids; parts of long texts
    input_transforms, transformed            rows in the form that a GPT reads
    features, feature_*, on_features         a BiLSTM on the features of a frozen model; `fastbert extract`
    fill_mask                                `fastbert fill-mask`
"""
