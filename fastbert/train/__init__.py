"""Training: the optimiser step that pre-training and fine-tuning share, and the loop of a pre-training run.

config, phase_options, deepspeed_options, recipes    what a user asks for; importable without torch
pretrain                                             a run from its options to its result: start here
score                                                a model's held-out figures, without a run
model_and_data, optimizers, initialisation           what the options name
loop, batch_source, phases, spikes, evaluation, result
                                                     a run's steps, batches, learning rate, held-out figures, outcome
engine, engines/                                     one step: in one process, under DDP, under DeepSpeed
precision, loss_scale                                autocast and fp8, float16's loss scale
capture, graph, shaped_steps                         steps as CUDA graphs: of pre-training, and of fine-tuning
distributed                                          the processes of a run, and how they agree
checkpoint, tensor_file, background_save, saving     checkpoints: their files, written meanwhile, a run's content
best_model, run_lock, run_clock, arithmetic          the model that is kept; one run at a time; time across resumes;
                                                     what a resumed run's bits depend on
metrics, window, step_rows, timing, append, wandb_log, stall
                                                     what is measured, and where it is logged
console, run_header, run_report, plots               what people see
plan, plan_memory, plan_text, scale, flops           a run's cost before it starts
word2vec                                             static vectors, trained by gensim
"""
