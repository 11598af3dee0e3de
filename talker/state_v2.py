"""Model Runner V2's adapter, which is the path on a GPU: a ModelState that installs our sampler.

``custom_sampler`` and ``get_model_state_cls`` exist in vLLM from 0.24 on and are private
interfaces: test each minor version.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.states import SamplingStates

from talker.attention import text_span
from talker.frames import lost_requests
from talker.sampler import Draw, Repetition, repetition_of
from talker.settings import SETTINGS_KEY
from talker.step_kernels import StepInputs, StepKernels, embed, fits


class TalkerModelState(DefaultModelState):  # type: ignore[misc]  # untyped base
    """vLLM's default state with the talker's sampler and, where they are asked for and can be, the
    kernels of ``talker.step_kernels``.
    """

    def custom_sampler(self, sampler: Any) -> tuple[TalkerSampler, None]:
        """Our sampler, and no rejection sampler: there is no speculative decoding here."""
        settings = (self.vllm_config.additional_config or {}).get(SETTINGS_KEY, {})
        use_kernels = bool(settings.get("step_kernels"))
        spread = self.vllm_config.parallel_config.tensor_parallel_size > 1
        self._weights = embedding_weights(self.model) if use_kernels and not spread else None
        kernels = None
        if use_kernels and fits(self.model.rows):
            kernels = StepKernels(self.model.rows, self.max_num_reqs)
        self._sampler = TalkerSampler(
            self.model, sampler.req_states, self.max_num_reqs, self.device, kernels
        )
        return self._sampler, None

    def prepare_inputs_embeds(
        self, scheduled_encoder_inputs: dict[str, list[int]], input_batch: Any, req_states: Any
    ) -> Tensor:
        """A step's embeddings, in the buffer that the graphs read. One kernel writes them there,
        unless the step has prompts in it: those may hold voices.
        """
        if self._weights is None or scheduled_encoder_inputs or input_batch.is_prefilling_np.any():
            prepared: Tensor = super().prepare_inputs_embeds(
                scheduled_encoder_inputs, input_batch, req_states
            )
            return prepared
        embeds: Tensor = self.encoder_runner.inputs_embeds
        ids = input_batch.input_ids[: input_batch.num_tokens]
        embed(ids, self.model.table, *self._weights, embeds, self.model.stale)
        return embeds[: input_batch.num_tokens_after_padding]

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """The KV cache's size is known: give the alignment heads' keys as many slots."""
        super().initialize_kv_cache(kv_cache_config, block_tables)
        if self.model.tap is not None:
            self.model.tap.make_room(kv_cache_config)
            self._sampler.block_tables = block_tables


def embedding_weights(model: Any) -> tuple[Tensor, Tensor] | None:
    """The code and text embeddings of a TalkerModel, as ``embed`` takes them; None where it embeds
    otherwise.
    """
    if not model.embeds_sums:
        return None
    return model.code_embedding.weight, model.model.embed_tokens.weight


@dataclass(frozen=True, slots=True)
class Asking:
    """Rows of a batch that want to know their place in their text, ``[R]`` each: row, slot, and the
    text's first position and length in ids; ``longest`` of the lengths.
    """

    rows: Tensor
    slots: Tensor
    start: Tensor
    count: Tensor
    longest: int


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
        self,
        model: Any,
        req_states: Any,
        max_num_reqs: int,
        device: torch.device,
        kernels: StepKernels | None = None,
    ) -> None:
        self._model, self._req_states, self._kernels = model, req_states, kernels
        self.sampling_states = SamplingStates(max_num_reqs, model.codebook_rows)
        #: Window and most of each slot, for families that watch repetition.
        self._repetition = None
        if model.table.look_back_rows:
            self._repetition = UvaBackedTensor((max_num_reqs, 2), dtype=torch.int32)
        self._lost = torch.zeros(max_num_reqs, dtype=torch.bool, device=device)
        # Never written to, so all steps may share them: what is beside the codes, where nobody
        # wants to know their place, their ranks, and how many rows were rejected.
        shape = (max_num_reqs, model.num_codebooks)
        self._no_places = torch.zeros(shape, device=device)
        self._zeros = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)
        #: The last step's, and whose they were: a batch often stays the same for many steps.
        self._drawn: tuple[bytes, Draw] | None = None
        self._asked: tuple[bytes, Asking | None] | None = None
        #: Of the requests that want to know their place in the text, by their slot.
        self._spans: dict[int, tuple[int, int]] = {}
        #: The runner's, once there is a KV cache.
        self.block_tables: Any = None

    def add_request(self, index: int, *args: Any) -> None:
        """A request is (re-)admitted at ``index``; the parameters come last in every version."""
        states, self._drawn, self._asked = self.sampling_states, None, None
        states.add_request(index, args[-1])
        if states.temperature.np[index] == 0:  # greedy: vLLM forgets its top_k
            states.temperature.np[index] = states.top_k.np[index] = 1
        if self._repetition is not None:
            self._repetition.np[index] = repetition_of(args[-1])
        self._lost[index] = False
        span = text_span(args[-1])
        if span is None:
            self._spans.pop(index, None)
        else:
            self._spans[index] = span

    def apply_staged_writes(self) -> None:
        """Copy what was staged on the host to the device."""
        self.sampling_states.apply_staged_writes()
        if self._repetition is not None:
            self._repetition.copy_to_uva()

    def get_logprobs_dims(self, *_: Any, **__: Any) -> tuple[int, int]:
        """How wide the logprobs channel is beyond the sampled id: all codes but one."""
        return self._model.num_codebooks - 1, 0

    def __call__(self, logits: Tensor, batch: Any) -> SamplerOutput:
        """Draw rows from ``logits`` ``[B, K * V]``."""
        requests = logits.shape[0]
        given = StepInputs(
            slots=batch.idx_mapping,
            last_tokens=batch.logits_indices,
            ends=batch.query_start_loc[: requests + 1],
            input_ids=batch.input_ids,
            positions=batch.positions,
            stale=self._model.stale[: batch.num_tokens],
            lengths=batch.seq_lens[:requests],
            prompts=self._req_states.prefill_len.gpu,
            lost=self._lost,
        )
        draw = self._draw(batch)
        if self._kernels is not None:
            out = self._kernels.step(logits, given, draw)
            ids, codes, num_sampled = out.ids, out.codes, out.num_sampled
        else:
            ids, codes, num_sampled = self._step(logits, given, draw)
        return SamplerOutput(
            sampled_token_ids=ids.view(-1, 1),
            logprobs_tensors=LogprobsTensors(
                codes, self._places(batch, given), self._zeros[:requests]
            ),
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=self._zeros[:requests],
        )

    def _step(self, logits: Tensor, given: StepInputs, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
        """Do as ``StepKernels.step``, by the sampler itself."""
        slots, last = given.slots, given.last_tokens.long()
        lost = lost_requests(given.stale, given.ends.long()) | given.lost[slots]
        given.lost[slots] = lost
        ids, codes = self._model.rows.step(
            logits, given.input_ids[last], given.positions[last], lost, draw
        )
        # a chunk that does not end its prompt yields nothing
        return ids, codes, (given.lengths >= given.prompts[slots]).int()

    def _places(self, batch: Any, given: StepInputs) -> Tensor:
        """Floats beside the codes, ``[B, K]``: a request's place in its text as the first
        "logprob".
        """
        requests = given.slots.shape[0]
        tap, tables = self._model.tap, self.block_tables
        if tap is None or tables is None:
            return self._no_places[:requests]
        tap.remember(tables.slot_mappings[0, : batch.num_tokens])
        asking = self._asking(batch)
        if asking is None:
            return self._no_places[:requests]
        blocks = tables.block_tables[0].gpu[asking.slots]
        places = tap.spot(
            given.last_tokens.long()[asking.rows],
            blocks,
            tables.block_sizes[0],
            asking.start,
            asking.count,
            asking.longest,
        )
        beside = torch.zeros_like(self._no_places[:requests])
        beside[asking.rows, 0] = places
        return beside

    def _asking(self, batch: Any) -> Asking | None:
        """The rows of the batch that want to know their place. The copies to the device wait for
        nothing, and there are none while the batch stays the same.
        """
        whose = batch.idx_mapping_np.tobytes()
        if self._asked is not None and self._asked[0] == whose:
            return self._asked[1]
        slots = batch.idx_mapping_np.tolist()
        found = [
            (row, slot, *self._spans[slot]) for row, slot in enumerate(slots) if slot in self._spans
        ]
        asking = None
        if found:
            columns = async_tensor_h2d(np.array(found, np.int64).T.copy(), self._lost.device)
            rows, own, start, count = columns.unbind(0)
            asking = Asking(rows, own, start, count, max(one[3] for one in found))
        self._asked = (whose, asking)
        return asking

    def _draw(self, batch: Any) -> Draw:
        states, slots = self.sampling_states, batch.idx_mapping
        whose = batch.idx_mapping_np.tobytes()
        if self._drawn is not None and self._drawn[0] == whose:
            return self._drawn[1]
        widths, repetition = states.top_k.np[batch.idx_mapping_np], None
        if self._repetition is not None:
            repetition = Repetition(*self._repetition.gpu[slots].unbind(1))
        draw = Draw(
            temperature=states.temperature.gpu[slots],
            top_k=states.top_k.gpu[slots],
            top_p=states.top_p.gpu[slots],
            seed=states.seeds.gpu[slots],
            widest=int(np.max(widths)),
            same_width=bool(np.min(widths) == np.max(widths)),
            repetition=repetition,
        )
        self._drawn = (whose, draw)
        return draw
