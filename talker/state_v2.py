"""Model Runner V2's adapter, which is the path on a GPU: a ModelState that installs our sampler.

``custom_sampler`` and ``get_model_state_cls`` exist in vLLM from 0.24 on. They are private
interfaces, so test each minor version.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from streaming.lru_cache import LruCache
from talker.attention import spans_of
from talker.frames import lost_requests
from talker.sampler import Draw, draw_of
from talker.settings import SETTINGS_KEY
from talker.step_kernels import StepInputs, StepKernels, embed, fits

#: Marks of requests that are kept, more than a talker has requests that wait.
MAX_MARKS = 4096


class TalkerModelState(DefaultModelState):  # type: ignore[misc]  # untyped base
    """vLLM's default state with the talker's sampler, and with the kernels of
    ``talker.step_kernels`` if they are asked for and can be used.
    """

    def custom_sampler(self, sampler: Any) -> tuple[TalkerSampler, None]:
        """Return our sampler, and no rejection sampler, since there is no speculative decoding."""
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
        """Return a step's embeddings, in the buffer that the graphs read. One kernel writes them,
        unless the step has prompts, which may hold voices.
        """
        if self._weights is None or scheduled_encoder_inputs or input_batch.is_prefilling_np.any():
            prepared: Tensor = super().prepare_inputs_embeds(
                scheduled_encoder_inputs, input_batch, req_states
            )
            return prepared
        embeds: Tensor = self.encoder_runner.inputs_embeds
        ids = input_batch.input_ids[: input_batch.num_tokens]
        self.model.note_ids(ids)
        embed(ids, self.model.table, *self._weights, embeds, self.model.stale)
        return embeds[: input_batch.num_tokens_after_padding]

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """Give the alignment heads' keys as many slots as the KV cache has, now that its size is
        known.
        """
        super().initialize_kv_cache(kv_cache_config, block_tables)
        if self.model.tap is not None:
            self.model.tap.make_room(kv_cache_config)
            self._sampler.block_tables = block_tables


def embedding_weights(model: Any) -> tuple[Tensor, Tensor] | None:
    """Return a TalkerModel's code and text embeddings, as ``embed`` takes them; None if it computes
    embeddings differently.
    """
    if not model.embeds_sums:
        return None
    return model.code_embedding.weight, model.model.embed_tokens.weight


@dataclass(frozen=True, slots=True)
class Asking:
    """The rows of a batch whose requests have word timings, ``[R]`` each: row, slot, and the text's
    first position and length in ids. ``longest`` is the greatest of these lengths.
    """

    rows: Tensor
    slots: Tensor
    start: Tensor
    count: Tensor
    longest: int


class TalkerSampler:
    """Replaces ``vllm.v1.worker.gpu.sample.sampler.Sampler``.

    Penalties, min_p, logit_bias and the like are ignored: the talker process builds the sampling
    parameters itself and sets none of them.
    """

    compute_nans = False
    #: The runner counts output ids in this unless it is None. Frame ids are far beyond its width,
    #: so it would write out of bounds.
    penalties_state = SimpleNamespace(output_bin_counts=None)

    def __init__(
        self,
        model: Any,
        req_states: Any,
        max_num_reqs: int,
        device: torch.device,
        kernels: StepKernels | None = None,
    ) -> None:
        self._model = model
        self._req_states = req_states
        self._kernels = kernels
        #: Sampling parameters by slot. The defaults, with the widest draw, are for vLLM's memory
        #: profiling before requests come.
        self._params = [SamplingParams()] * max_num_reqs
        #: Marks by slot: whether the request has met a stale frame.
        self._lost = torch.zeros(max_num_reqs, dtype=torch.bool, device=device)
        #: The requests whose marks these are.
        self._marked: list[str | None] = [None] * max_num_reqs
        #: The marks of requests that have left their slots. A preempted request stays marked, since
        #: the prefix cache may have the lost chunk's blocks when it is taken up again. New ones
        #: of an earlier deadline are taken up before it.
        self._left: LruCache[str, Tensor] = LruCache(MAX_MARKS)
        shape = (max_num_reqs, model.num_codebooks)
        #: The values beside the codes of requests without word timings. Never written to, so all
        #: steps may share them.
        self._no_places = torch.zeros(shape, device=device)
        #: Their ranks, and the number of rejected rows; shared in the same way.
        self._zeros = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)
        #: The last step's parameters and its batch, since a batch often stays the same for many
        #: steps.
        self._batch: tuple[bytes, Draw, Asking | None] | None = None
        #: The runner's block tables, once there is a KV cache.
        self.block_tables: Any = None

    def add_request(self, index: int, *args: Any) -> None:
        """Take the parameters of a request that is (re-)admitted at ``index``. They are the last
        argument in every version.
        """
        self._params[index] = args[-1]
        self._batch = None
        # none for the dummy requests with which vLLM 0.33 warms the sampler up
        name = self._req_states.index_to_req_id.get(index)
        if name in self._marked:
            self._leave(self._marked.index(name))
        self._leave(index)
        mark = self._left.pop(name, None)
        self._marked[index] = name
        # views and kernels: assigning to an element would copy from the host and wait
        if mark is None:
            self._lost[index].zero_()
        else:
            self._lost[index].copy_(mark)

    def _leave(self, index: int) -> None:
        """Keep the mark at ``index`` for its request, which may only be preempted."""
        name = self._marked[index]
        self._marked[index] = None
        if name is not None:
            self._left[name] = self._lost[index].clone()

    def apply_staged_writes(self) -> None:
        """Do nothing: parameters go to the device with the first step of a batch."""

    def get_logprobs_dims(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Number of extra columns in the logprobs channel, beyond the sampled id: all codes but
        one.
        """
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
        draw, asking = self._of_batch(batch)
        if self._kernels is not None:
            out = self._kernels.step(logits, given, draw)
            ids = out.ids
            codes = out.codes
            num_sampled = out.num_sampled
        else:
            ids, codes, num_sampled = self._step(logits, given, draw)
        return SamplerOutput(
            sampled_token_ids=ids.view(-1, 1),
            logprobs_tensors=LogprobsTensors(
                codes, self._places(batch, given, asking), self._zeros[:requests]
            ),
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=self._zeros[:requests],
        )

    def _step(self, logits: Tensor, given: StepInputs, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
        """Sample as ``StepKernels.step`` does, with the PyTorch sampler."""
        slots = given.slots
        last = given.last_tokens.long()
        lost = lost_requests(given.stale, given.ends.long()) | given.lost[slots]
        given.lost[slots] = lost
        ids, codes = self._model.rows.step(
            logits, given.input_ids[last], given.positions[last], lost, draw
        )
        # a chunk that does not end its prompt yields no row
        return ids, codes, (given.lengths >= given.prompts[slots]).int()

    def _places(self, batch: Any, given: StepInputs, asking: Asking | None) -> Tensor:
        """Return the floats beside the codes, ``[B, K]``: a request's position in its text as the
        first "logprob".
        """
        requests = given.slots.shape[0]
        tap = self._model.tap
        tables = self.block_tables
        if tap is None or tables is None:
            return self._no_places[:requests]
        tap.remember(tables.slot_mappings[0, : batch.num_tokens])
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

    def _of_batch(self, batch: Any) -> tuple[Draw, Asking | None]:
        """Return the batch's sampling parameters, and its rows with word timings. The copies to the
        device are asynchronous, and only made if the batch has changed.
        """
        whose = batch.idx_mapping_np.tobytes()
        if self._batch is None or self._batch[0] != whose:
            slots = batch.idx_mapping_np.tolist()
            device = self._lost.device
            params = [self._params[slot] for slot in slots]
            model = self._model
            draw = draw_of(params, model.codebook_rows, bool(model.table.look_back_rows))
            draw = draw.moved(lambda column: async_tensor_h2d(column, device))
            spans = spans_of(params)
            asking = None
            if spans:
                found = [(row, slots[row], *span) for row, span in spans.items()]
                columns = async_tensor_h2d(np.array(found, np.int64).T.copy(), device)
                rows, own, start, count = columns.unbind(0)
                asking = Asking(rows, own, start, count, max(one[3] for one in found))
            self._batch = whose, draw, asking
        return self._batch[1:]
