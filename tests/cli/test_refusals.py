"""What cannot be, or would change nothing, is refused in one line with exit status 2."""

import shlex

import pytest

from tests.command_line import ddlnb

# What a call begins with, then how it goes on and what its error says.
REFUSED = {
    "forecast --model bert-large --cluster survey-10GbE": [
        ("--gpus 64", "64 workers exceed the 32 GPUs"),
        ("--gpus 6", "6 workers do not fill nodes of 4"),
        ("--method MGWFBP", "did you mean 'MG-WFBP'"),
        ("--gpus 8 --partition 1B", "336,226,108 messages or servers"),
        ("--servers 200000", "more than 100,000 takes minutes"),
        ("--draws 99999999", "ask for fewer draws"),
        ("--draws -1", "draws -1 must be a whole number, at least 0"),
        ("--csv .", "'.' is a folder; name a file in it"),
        ("--csv /proc/rows.csv", "no file can be written in '/proc'"),
        ("--throughput 1 --gpus 6", "6 workers do not fill nodes"),
        ("--slow 32:2", "worker 32 is slowed down"),
        ("--slow 0:0", "compute factor 0.0 of worker 0 must be"),
    ],
    "forecast --model small-conv --cluster survey-10GbE": [
        ("--throughput 1e300", "FLOP/s, and RTX2080Ti computes"),
        ("--throughput 1e-300", "FLOP/s, and RTX2080Ti computes"),
        ("--throughput 1 --batch 99999999999", "choose a batch of at"),
        ("--gpu A100", "leave out --gpu"),
    ],
    "forecast --model small-conv": [
        ("--nodes 4", "or the hardware by name"),
        ("--gpu A1000", "unknown GPU 'A1000'"),
        ("--machine p44", "unknown machine 'p44'"),
        ("--machine p4d --gpu V100", "V100-SXM2-32GB is not that of machine p4d.24xl"),
        ("--machine p4d --gpus-per-node 16", "exceeds the 8 GPUs of machine p4d"),
        ("--gpu A100 --nodes 2 --network fast", "write rate and protocol"),
        ("--gpu V100 --precision bf16", "precision of V100-SXM2-32GB 'bf16'"),
        ("--gpu A100 --save-cluster mine.txt", "must have a name in .yaml"),
        ("--gpu A100 --nodes 0", "nodes 0 must be a whole number"),
        ("--gpu T4 --throughput 1e9", "FLOP/s, and T4 computes"),
    ],
    "forecast --model resnet50 --cluster survey-10GbE": [
        ("--method MG-WFBP --credit 1MB", "credit '1MB' changes"),
        ("--method DeAR --servers 3", "servers 3 change nothing"),
        ("--nodes 9", "nodes 9 exceed the 8 of cluster 'survey-10GbE'"),
    ],
    "timeline --model bert-large --cluster survey-10GbE": [
        ("--iterations 100000", "spans, and viewers and pictures take"),
        ("--out /proc/trace.json", "no file can be written in '/proc'"),
        ("--slow 0-2", "--slow '0-2' must be a rank and a factor"),
        ("--servers 0", "servers 0 must be a whole number"),
        ("--out trace.txt", "must have a name in .json"),
    ],
    "timeline --model resnet50 --cluster survey-10GbE": [
        ("--partition 1MB", "partition '1MB' changes nothing: MG-WFBP"),
        ("--servers 3", "servers 3 change nothing: MG-WFBP goes without"),
    ],
    "forecast lossy --model resnet50 --cluster survey-10GbE --method local(8)": [
        (
            "--compression cpu-1thread",
            "'cpu-1thread' changes nothing: local(8) does not compress; leave out --compression",
        ),
        ("--base BSP-PS", "'BSP-PS' changes nothing"),
        ("--base WFBP-A2A", "local(8) does not; leave"),
    ],
    "forecast lossy --model bert-base --cluster survey-10GbE": [
        ("", "give at least one --method"),
        ("--curves none.csv --target 1", "none.csv; make them with"),
        ("--curves . --target 1", "cannot be read as a table: Is a directory; make them with"),
        ("--target 1", "together"),
        ("--method 'bsp + fp16' --compression gpu", "cpu-1thread"),
        (
            "--gpus 8 --method 'local(8)' --straggler 'one-slow(2, 8)'",
            "slows a worker that is not there: 8 have ranks 0 to 7",
        ),
        ("--gpus 8 --method 'local(8)' --straggler one-slo", "did you mean 'one-slow'"),
    ],
    "forecast lossy": [
        (
            "--model resnet50 --machine p4d --method 'local(8)' --sequence 512",
            "model 'resnet50' has no sequences",
        ),
    ],
    "forecast scaling": [
        (
            "--model bert-large --cluster survey-10GbE --figure a.xyz",
            "'a.xyz' must have a name in .png, .svg, .pdf",
        ),
    ],
    "forecast": [
        ("--nodes two", "--nodes 'two' must be a whole number, such as --nodes 4"),
        ("--draws 1.5", "--draws '1.5' must be a whole number, such as --draws 4"),
        ("--nodes", "'--nodes' requires an argument; see 'ddlnb forecast --help'"),
        ("--gpus 8,x", "'8,x' must be whole numbers, separated by commas"),
        ("--model bert-large", "give --cluster"),
        ("--gpu V100", "give --model"),
        ("--model bert-large --cluster two-cores-2-workers", "measure profile --model bert-large"),
        ("--fig4 --model resnet50", "were run; leave out --model"),
        ("--fig4 --gpus 8", "were run; leave out --gpus"),
        ("--fig4 --method all --batch 8", "leave out --batch and --meth"),
    ],
    "plan --model resnet50 --cluster survey-10GbE --method MG-WFBP": [
        ("--latency 1e-3", "workload on the cluster; leave out --latency"),
        ("--bandwidth 1e9", "workload on the cluster; leave out --bandwidth"),
        ("--gpu A100", "says what hardware there is; leave out --gpu"),
        ("--time-limit 2", "MG-WFBP is a rule, and searches nothing; leave out"),
        ("--servers 3", "goes without; leave them out, or take one of BSP-PS"),
    ],
    "plan --model resnet50 --profile resnet50_b64_rtx2080ti": [
        ("--method MG-WFBP --partition 1MB", "MG-WFBP has none; leave it out, or"),
        (
            "--method MG-WFBP --gpus 8 --time-limit 2",
            "there is none; leave out --gpus and --time-limit",
        ),
        ("--method MG-WFBP --servers 3", "servers 3 change nothing: MG-WFBP goes"),
        (
            "--method BSP-A2A --latency 1e-3",
            "BSP-A2A is planned without the cost of an all-reduce; leave out --latency",
        ),
    ],
    "plan --model resnet50 --method searched": [
        ("--cluster survey-10GbE --sent topk-0.01", "unknown compression 'topk-0.01'"),
        ("--cluster survey-10GbE --mixed", "name a compressor with --sent; leave out --mixed"),
        (
            "--cluster survey-10GbE --sent 'top-k(0.01) + feedback' --compression nix",
            "unknown compression profile 'nix'",
        ),
        ("--sent 'top-k(0.01) + feedback'", "searched on a --cluster; leave out --sent"),
    ],
    "plan": [
        ("--model small-conv --method WFPB-PS", "did you mean 'WFBP-PS'"),
        ("--model smal-conv --method WFBP-PS", "did you mean 'small-conv'"),
        ("--method BSP-PS", "give --model; see"),
        ("--model small-conv --method searched", "cluster; give --cluster, or"),
        (
            "--model resnet50 --cluster survey-10GbE --method searched --servers 2",
            "a searched plan goes without servers; leave out --servers",
        ),
        (
            "--model resnet50 --method MG-WFBP --cluster survey-10GbE --sent fp16",
            "ask `ddlnb forecast lossy --method 'bsp + fp16' --base MG-WFBP`",
        ),
    ],
    "train --method bsp": [
        ("--folder /proc", "no file can be written in"),
        ("--out /proc/curves.csv", "no file can be written in"),
        ("--steps 9 --schedule 'warm-up(10)'", "over 10 steps"),
        ("--task digit", "did you mean 'digits'"),
        ("--out curves.txt", "must have a name in .csv"),
        ("--tune --lr 0.1", "leave out"),
        ("--seeds 0", "seeds 0"),
        ("--task wikitext", "give their folder as data"),
        ("--seed 99999999999999999999", "below 4294967296"),
        ("--split 'non-iid(1e308)'", "beyond take iid"),
        ("--optimizer 'momentum(2)'", "momentum 2.0 must be"),
        ("--workers 4 --straggler 'one-slow(4, 9)'", "ranks 0 to 3"),
        ("--straggler slow", "unknown straggler 'slow'"),
        ("--executor real", "unknown executor 'real'"),
        ("--executor distributed --jobs 2", "one by one"),
        ("--executor distributed --straggler constant", "a clock is for lockstep"),
        ("--evaluate-every 0", "evaluate_every 0"),
        ("--lr 0.1,1e9", "learning rate 1000000000.0 must be between"),
    ],
    "train": [
        ("", "give at least one --method"),
        ("--method bps", "did you mean 'bsp'"),
        ("--method 'local(8)' --optimizer lars", "take sgd or momentum"),
        ("--method 'bsp + topk(0.1)'", "did you mean 'top-k'"),
    ],
    "measure profile --model small-conv": [
        ("--batch 10000000", "GB of memory"),
        ("--device tpu", "no device 'tpu'; give cpu, or"),
        ("--device xpu", "'xpu' needs a GPU, and torch"),
    ],
    "measure --model small-conv": [
        ("--workers 0", "workers 0"),
        ("--engine horovod9", "unknown engine"),
        ("--profile papre", "did you mean 'paper'"),
        ("--workers 2,0", "workers[1] 0"),
        ("--workers 2,x", "'2,x' must be whole numbers"),
    ],
    "survey reproduce": [
        ("--profile quik", "did you mean 'quick'"),
        ("--set launcher", "--set 'launcher' must be name=value"),
        ("--set 'options={a'", "--set 'options={a' must be name=value"),
    ],
    "survey strategies": [
        ("--model mixture", "each strategy has its own; give --layout; leave out --model"),
        ("--layout dp2 --model dens", "did you mean 'dense'?"),
        ("--layout tp3", "tp 3 does not divide heads 4 of model 'small transformer'"),
        ("--layout 'dp2 pp2 zero3'", "give zero1 or pp 1"),
        ("--layout 'dp2 tq2'", "unknown word in a layout: 'tq2'"),
        ("--seed -3", "seed -3 must be a whole number, at least 0"),
    ],
    "survey": [
        ("check nowhere.csv", "there is no table nowhere.csv"),
    ],
    "layouts iteration": [
        ("--layout dp32 --picture a.xyz", "must have a name in .png"),
        ("--layout dp32 --trace /tmp", "name a file in it, such as"),
        ("--layout dp64", "needs 64 ranks, and network 'star(4)' has 32"),
        ("--layout tp3", "tp 3 does not divide heads 32 of model 'llama3-8b'"),
        ("--layout dp2 --layout tp2 --trace x", "a trace is of one layout, and 2"),
        ("--layout dp2 --trace a.txt", "'a.txt' must have a name in .json"),
        ("--layout dp2 --topology 'star(2)'", "has 2 hosts, fewer than the 4 nodes"),
        ("--layout dp2 --sequence 0", "sequence 0 must be a whole number"),
        ("", "missing option '--layout'"),
    ],
    "layouts scale --model llama-8b": [
        ("--page a.html", "need --advise; leave out --page"),
        ("--advise --csv", "leave out one of them"),
        ("--advise --gpu-price -1", "price of a GPU per hour, -1"),
        ("--keep-going", "left empty; leave out --keep-going"),
        ("--machine p4d --gpu H100", "GPU H100-SXM is not that"),
        ("--sequence 0", "sequence 0 must be a whole number"),
        ("--global-batch 0", "global_batch 0 must be a whole number"),
        ("--top 0", "top 0 must be a whole number"),
        ("--precision int4", "unknown precision"),
    ],
    "layouts scale": [
        ("--model llama3-8b --gpu-price 2", "need --advise; leave out --gpu"),
        (
            "--model llama3-8b --framework fsdp --schedule gpipe",
            "schedule gpipe is one of pipelines, and fsdp has none; leave it out",
        ),
        ("", "give --model"),
        ("--table in.csv", "give both --table"),
        ("--table in.csv --out o.csv --gpu H100", "...); leave out --gpu"),
        ("--table in.csv --out o.csv --nodes 8", "leave out --nodes"),
        ("--model my.py:task", "Hugging Face config.json, or given by its sizes (docs/large_scale"),
        ("--model gpt2", "a GPU can hold alone, such as my.py:task, is for `ddlnb advise`"),
        ("--table missing.csv --out out.csv", "missing.csv cannot be read"),
    ],
    "layouts balance --gpu 4xA100 --gpu '4 x V100' --precision fp16 --samples 64 --sequence 2048": [
        ("--model gpt-9", "unknown large model 'gpt-9'"),
        ("--samples 63", "8 workers do not divide a batch of 63"),
        ("--picture .", "ways.png"),
    ],
    "layouts balance": [
        ("--gpu 4xA100", "give two kinds of GPUs or more"),
        ("--gpu A100 --gpu 4xV100", "'A100' must say how many"),
        ("--gpu 4xA100 --gpu 2xA100", "A100 is given twice"),
        ("--gpu 4xA100 --gpu 4xV100", "unknown precision of V100"),
        ("--gpu 4xA100 --gpu 4xV100", "say which by precision (--precision)"),
        ("--gpu 4xA100 --gpu 0xT4", "'0xT4' must say how many"),
    ],
    "cluster collectives": [
        ("--table nowhere.csv", "there is no table nowhere.csv"),
        ("--fit nowhere.csv", "there is no table of measured collectives"),
        ("--out out.csv", "--out needs --table"),
        ("--validate --table x", "leave out --table"),
    ],
    "cluster fit": [
        ("survey-10GbE", "needs rows that were measured on it"),
        ("nowhere", "unknown cluster 'nowhere'"),
        ("survey --out here", "'survey' makes no use of out; leave it out"),
        ("here --rows rows.csv", "'here' makes no use of rows"),
        ("survey-10GbE --write", "a cluster makes no use of write"),
    ],
    "cluster": [
        ("show survey-10Gb", "did you mean 'survey-10GbE'"),
        ("import nowhere.log", "there is no log nowhere.log"),
    ],
    "advise --model resnet50 --cluster survey-10GbE --gpus 8 --draws 0 --plans 0": [
        ("--gpu-price -3", "price of a GPU per hour, -3"),
        ("--gpu-price nan", "'nan' is no price"),
        ("--measured 10", "give its name"),
        ("--method MG-WFBP", "give both"),
        ("--optimizer magic", "unknown optimizer 'magic'"),
        ("--page .", "advice.html"),
    ],
    "advise": [
        ("--measured fast", "--measured 'fast' must be a number, such as --meas"),
    ],
    "": [
        ("forcast", "no such command 'forcast'. Did you mean 'forecast'"),
        ("--versoin", "no such option: --versoin"),
        ("models --cvs", "no such option: --cvs (Possible options: --csv)"),
        ("models --batch 4", "only models that are named are traced; leave out --batch"),
        ("hardware --csv", "list gpus, networks or machines"),
    ],
}


@pytest.mark.parametrize(
    ("words", "said"),
    [(f"{call} {more}", said) for call, cases in REFUSED.items() for more, said in cases],
)
def test_a_call_that_makes_no_sense_is_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = ddlnb(*shlex.split(words))
    assert done.returncode == 2
    [error] = [
        line for line in done.stderr.splitlines() if not line.startswith(("Cluster ", "note: "))
    ]
    assert error.startswith("ddlnb: ")
    assert said in error
