"""Model Runner V2's adapter, which is the path on a GPU: a ModelState that installs our sampler.

``custom_sampler`` and ``get_model_state_cls`` exist in vLLM from 0.24 on and are private
interfaces: test each minor version.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.states import SamplingStates

from talker.attention import text_span
from talker.frames import lost_requests
from talker.sampler import Draw


class TalkerModelState(DefaultModelState):  # type: ignore[misc]  # untyped base
    """vLLM's default state with the talker's sampler."""

    def custom_sampler(self, sampler: Any) -> tuple[TalkerSampler, None]:
        """Our sampler, and no rejection sampler: there is no speculative decoding here."""
        self._sampler = TalkerSampler(
            self.model, sampler.req_states, self.max_num_reqs, self.device
        )
        return self._sampler, None

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """The KV cache's size is known: give the alignment heads' keys as many slots."""
        super().initialize_kv_cache(kv_cache_config, block_tables)
        if self.model.tap is not None:
            (group,) = kv_cache_config.kv_cache_groups
            self.model.tap.make_room(kv_cache_config.num_blocks * group.kv_cache_spec.block_size)
            self._sampler.block_tables = block_tables


class TalkerSampler:
    """Stands in for ``vllm.v1.worker.gpu.sample.sampler.Sampler``.

    Penalties, min_p, logit_bias and the like are not looked at: the talker process builds
    the sampling parameters itself and has none of them.
    """

    compute_nans = False
    #: The runner counts output ids into this unless it is None, and frame ids lie far
    #: outside its width: a write out of bounds.
    penalties_state = SimpleNamespace(output_bin_counts=None)

    def __init__(
        self, model: Any, req_states: Any, max_num_reqs: int, device: torch.device
    ) -> None:
        self._model, self._req_states = model, req_states
        self.sampling_states = SamplingStates(max_num_reqs, model.codebook_rows)
        self._lost = torch.zeros(max_num_reqs, dtype=torch.bool, device=device)
        #: The last step's, and whose it was: a batch often stays the same for many steps.
        self._drawn: tuple[bytes, Draw] | None = None
        #: Of the requests that want to know their place in the text, by their slot.
        self._spans: dict[int, tuple[int, int]] = {}
        #: The runner's, once there is a KV cache.
        self.block_tables: Any = None

    def add_request(self, index: int, *args: Any) -> None:
        """A request is (re-)admitted at ``index``; the parameters come last in every version."""
        states, self._drawn = self.sampling_states, None
        states.add_request(index, args[-1])
        if states.temperature.np[index] == 0:  # greedy: vLLM forgets its top_k
            states.temperature.np[index] = states.top_k.np[index] = 1
        self._lost[index] = False
        span = text_span(args[-1])
        if span is None:
            self._spans.pop(index, None)
        else:
            self._spans[index] = span

    def apply_staged_writes(self) -> None:
        """Copy what was staged on the host to the device."""
        self.sampling_states.apply_staged_writes()

    def get_logprobs_dims(self, *_: Any, **__: Any) -> tuple[int, int]:
        """How wide the logprobs channel is beyond the sampled id: all codes but one."""
        return self._model.num_codebooks - 1, 0

    def __call__(self, logits: Tensor, batch: Any) -> SamplerOutput:
        """Draw rows from ``logits`` ``[B, K * V]``."""
        slots, last = batch.idx_mapping, batch.logits_indices.long()
        requests = slots.shape[0]
        ends = batch.query_start_loc[: requests + 1].long()
        lost = lost_requests(self._model.stale[: batch.num_tokens], ends) | self._lost[slots]
        self._lost[slots] = lost
        ids, codes = self._model.rows.step(
            logits, batch.input_ids[last], batch.positions[last], lost, self._draw(batch)
        )
        # a chunk that does not end its prompt yields nothing
        prefill = self._req_states.prefill_len.gpu[slots]
        num_sampled = (batch.seq_lens[:requests] >= prefill).int()
        beside = torch.zeros(codes.shape, device=codes.device)
        self._note_places(beside, batch, last)
        return SamplerOutput(
            sampled_token_ids=ids.view(-1, 1),
            logprobs_tensors=LogprobsTensors(
                codes,
                beside,
                torch.zeros(requests, dtype=torch.int32, device=codes.device),
            ),
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=torch.zeros_like(num_sampled),
        )

    def _note_places(self, beside: Tensor, batch: Any, last: Tensor) -> None:
        """A request's place in its text rides beside the codes, as the first "logprob"."""
        tap, tables = self._model.tap, self.block_tables
        if tap is None or tables is None:
            return
        tap.remember(tables.slot_mappings[0, : batch.num_tokens])
        slots = batch.idx_mapping_np.tolist()
        asking = [row for row, slot in enumerate(slots) if slot in self._spans]
        if asking:
            rows = torch.tensor(asking, device=beside.device)
            blocks = tables.block_tables[0].gpu[batch.idx_mapping[rows].long()]
            spans = [self._spans[slots[row]] for row in asking]
            beside[rows, 0] = tap.spot(last[rows], blocks, tables.block_sizes[0], spans)

    def _draw(self, batch: Any) -> Draw:
        states, slots = self.sampling_states, batch.idx_mapping
        whose = batch.idx_mapping_np.tobytes()
        if self._drawn is not None and self._drawn[0] == whose:
            return self._drawn[1]
        widths = states.top_k.np[batch.idx_mapping_np]
        draw = Draw(
            temperature=states.temperature.gpu[slots],
            top_k=states.top_k.gpu[slots],
            top_p=states.top_p.gpu[slots],
            seed=states.seeds.gpu[slots],
            widest=int(np.max(widths)),
            same_width=bool(np.min(widths) == np.max(widths)),
        )
        self._drawn = (whose, draw)
        return draw
