"""The V1 runner's adapter, which is vLLM's native path on a CPU.

vLLM is given it as ``worker_cls="talker.worker_v1.TalkerCPUWorker"``. A V1 runner calls
``self.sampler(logits, sampling_metadata)`` and keeps the step's inputs in its own buffers, where a
sampler with a reference to the runner finds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from talker.attention import spans_of
from talker.frames import lost_requests
from talker.sampler import Draw, draw_of


class TalkerCPUWorker(CPUWorker):  # type: ignore[misc]  # untyped base
    """vLLM's CPU worker with the talker's sampler in the runner."""

    def load_model(self, **kwargs: Any) -> None:
        """Load the model, then replace the runner's sampler by ours."""
        super().load_model(**kwargs)
        self.model_runner.sampler = TalkerSampler(self.model_runner)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Give the alignment heads' keys as many slots as the KV cache has, now that its size is
        known.
        """
        super().initialize_from_config(kv_cache_config)
        if (tap := self.model_runner.model.tap) is not None:
            tap.make_room(kv_cache_config)


class TalkerSampler:
    """Replaces ``vllm.v1.sample.sampler.Sampler``."""

    logprobs_mode = "processed_logprobs"  # the runner's warm-up reads it

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._model = runner.model
        self._metadata: Any = None
        self._draw: Draw | None = None
        #: Index and text span of the requests with word timings.
        self._spans: dict[int, tuple[int, int]] = {}
        #: Requests whose prompt has met a stale frame in any of its chunks. A preempted one stays
        #: among them, since the prefix cache may have the chunk's blocks when it is taken up again.
        self._lost: frozenset[str] = frozenset()

    def __call__(self, logits: Tensor, sampling_metadata: Any, **_: Any) -> SamplerOutput:
        """Draw rows from ``logits`` ``[B, K * V]``."""
        runner = self._runner
        batch = logits.shape[0]
        if sampling_metadata is not runner.input_batch.sampling_metadata:
            return self._nothing(batch)  # a warm-up, without requests
        # torch's CPU generators have no offset, so the runner would raise when it rewinds them for
        # a chunk of a prompt. Our noise needs no generators.
        sampling_metadata.generators.clear()
        names = runner.input_batch.req_ids[:batch]
        if sampling_metadata is not self._metadata or self._draw is None:
            self._metadata = sampling_metadata  # replaced whenever the batch changes
            params = [runner.requests[name].sampling_params for name in names]
            # the warm-up's requests, which have neither, do not get here under this runner
            if any(p.seed is None or (p.temperature and p.top_k < 1) for p in params):
                raise ValueError("a talker request needs a top_k and a seed")
            width = self._model.codebook_rows
            watches = bool(self._model.table.look_back_rows)
            self._draw = draw_of(params, width, watches)
            self._spans = spans_of(params)
        ends = runner.query_start_loc.gpu[: batch + 1]
        last = (ends[1:] - 1).long()
        ids, codes = self._model.rows.step(
            logits,
            runner.input_ids.gpu[last],
            runner.positions[last],
            self._find_lost(names, ends.long()),
            self._draw,
        )
        output = _output(ids, codes)
        self._note_places(output, ends)
        return output

    def _note_places(self, output: SamplerOutput, ends: Tensor) -> None:
        """Put the position in the text beside the codes, as the first "logprob"."""
        tap = self._model.tap
        if tap is None:
            return
        table = self._runner.input_batch.block_table[0]
        tap.remember(table.slot_mapping.gpu[: int(ends[-1])])
        if self._spans:
            rows = torch.tensor(list(self._spans))
            blocks = table.block_table.gpu[rows]
            start, count = torch.tensor(list(self._spans.values())).unbind(1)
            places = tap.spot(
                ends[rows + 1].long() - 1, blocks, table.block_size, start, count, int(count.max())
            )
            output.logprobs_tensors.logprobs[rows, 0] = places

    def _find_lost(self, names: list[str], ends: Tensor) -> Tensor:
        """Lost requests, ``[B]`` bool: one is lost once any chunk of its (re-)prefill was."""
        stale = self._model.stale[: int(ends[-1])]
        if not self._lost and not stale.any():
            return torch.zeros(len(names), dtype=torch.bool)
        lost = lost_requests(stale, ends).tolist()
        here = {name for name, is_lost in zip(names, lost, strict=True) if is_lost}
        self._lost = (self._lost | here).intersection(self._runner.requests)
        return torch.tensor([name in self._lost for name in names])

    def _nothing(self, batch: int) -> SamplerOutput:
        codes = torch.zeros(batch, self._model.num_codebooks, dtype=torch.int32)
        return _output(torch.zeros(batch, dtype=torch.long), codes)


def _output(ids: Tensor, codes: Tensor) -> SamplerOutput:
    """Pass the codes on as the token ids of the logprobs channel."""
    return SamplerOutput(
        ids.view(-1, 1),
        LogprobsTensors(
            codes, torch.zeros(codes.shape), torch.zeros(len(codes), dtype=torch.int32)
        ),
    )
