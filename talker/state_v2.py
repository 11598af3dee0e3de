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

from talker.frames import lost_requests
from talker.sampler import Draw


class TalkerModelState(DefaultModelState):  # type: ignore[misc]  # untyped base
    """vLLM's default state with the talker's sampler."""

    def custom_sampler(self, sampler: Any) -> tuple[TalkerSampler, None]:
        """Our sampler, and no rejection sampler: there is no speculative decoding here."""
        return TalkerSampler(self.model, sampler.req_states, self.max_num_reqs, self.device), None


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

    def add_request(self, index: int, *args: Any) -> None:
        """A request is (re-)admitted at ``index``; the parameters come last in every version."""
        self.sampling_states.add_request(index, args[-1])
        self._lost[index] = False

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
        return SamplerOutput(
            sampled_token_ids=ids.view(-1, 1),
            logprobs_tensors=LogprobsTensors(
                codes,
                torch.zeros(codes.shape, device=codes.device),
                torch.zeros(requests, dtype=torch.int32, device=codes.device),
            ),
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=torch.zeros_like(num_sampled),
        )

    def _draw(self, batch: Any) -> Draw:
        states, slots = self.sampling_states, batch.idx_mapping
        cold = states.temperature.np[batch.idx_mapping_np] == 0
        widths = np.where(cold, 1, states.top_k.np[batch.idx_mapping_np])
        return Draw(
            temperature=states.temperature.gpu[slots],
            top_k=states.top_k.gpu[slots],
            top_p=states.top_p.gpu[slots],
            seed=states.seeds.gpu[slots],
            widest=int(np.max(widths)),
            same_width=bool(np.min(widths) == np.max(widths)),
            all_greedy=bool(cold.all()),
        )
