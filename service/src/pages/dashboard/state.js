// The state of the service in one word, the reason, and the list of matters that need attention. Owns: the limits
// beyond which a figure is listed. Must not: touch the page. Functions are given the view, see sections.js.

/** Limits beyond which a matter is listed as needing attention. */
const ATTENTION = { silenceMs: 10_000, queueShare: 0.75, memoryShare: 0.9, freeShare: 0.1, refusedRows: 60 };

const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

/** Returns the memory that counts against the cap: the charge of the cgroup if there is one, else the resident set. */
function memory(answer) {
  const { group, rss, cap_bytes: cap } = answer.memory;
  if (group) return { used: group.charged_bytes, anon: group.anon_bytes, cache: group.page_cache_bytes, cap };
  if (rss) return { used: rss.anon_bytes + rss.file_bytes, anon: rss.anon_bytes, cache: rss.file_bytes, cap };
  return { used: null, anon: null, cache: null, cap };
}

/** Returns the state in one word, the reason, and the list of matters that need attention. */
function verdict(view) {
  const { answer } = view;
  const attention = attentionList(view);
  if (answer.gap) {
    const { first_slot: first, last_slot: last, detail: seen } = answer.gap;
    const slots =
      first === last
        ? `Slot ${count(first)} is missing`
        : `Slots ${count(first)} to ${count(last)} are missing (${plural(last - first + 1, 'slot', 'slots')})`;
    const stands =
      answer.applied_slot === null
        ? 'Nothing is applied.'
        : `The store stands at slot ${count(answer.applied_slot)}, and nothing after the gap is applied.`;
    return {
      level: 'bad',
      word: 'Not ready',
      headline: 'Not ready: slots are missing',
      reason: `${slots}: ${seen}. ${stands} Lookups read that state.`,
      attention,
    };
  }
  if (!answer.ready) {
    return {
      level: 'bad',
      word: 'Not ready',
      headline: 'Not ready',
      reason: `Reason: ${answer.not_ready_reason}.`,
      attention,
    };
  }
  if (attention.length > 0)
    return { level: 'warn', word: 'Attention', headline: 'Ready, but needs attention', reason: '', attention };
  return { level: 'ok', word: 'Ready', headline: 'Ready', reason: 'Lookups follow the live chain.', attention };
}

function attentionList(view) {
  const { answer, rows } = view;
  const { counters, disk } = answer;
  const list = [];
  const sampled = answer.now_unix_ms - (rows.length > 0 ? rows[rows.length - 1].t : answer.now_unix_ms);
  if (sampled > ATTENTION.silenceMs)
    list.push(`The last sample is ${duration(sampled)} old: rates and latencies are outdated.`);
  const since = answer.now_unix_ms - answer.connected_since_unix_ms;
  const silent = answer.now_unix_ms - Math.max(answer.applied_unix_ms || 0, answer.connected_since_unix_ms);
  if (!answer.connected) list.push(`Not connected to the stream for ${duration(since)}.`);
  else if (!answer.gap && silent > ATTENTION.silenceMs) list.push(`No slot was applied for ${duration(silent)}.`);
  if (answer.queue_batches >= ATTENTION.queueShare * answer.queue_batches_max) {
    list.push(
      `The queue to ingest-apply holds ${answer.queue_batches} of ${answer.queue_batches_max} batches: the disk is slower than the stream.`,
    );
  }
  const { anon, cap } = memory(answer);
  if (anon !== null && anon > ATTENTION.memoryShare * cap)
    list.push(`Anonymous memory is ${percent((anon / cap) * 100)} of the cap: the kernel kills the service at 100 %.`);
  if (disk.space && disk.space.free_bytes < ATTENTION.freeShare * disk.space.total_bytes) {
    list.push(
      `The store's file system has ${bytes(disk.space.free_bytes)} free, ${percent((disk.space.free_bytes / disk.space.total_bytes) * 100)} of its size.`,
    );
  }
  const refused = rows.slice(-ATTENTION.refusedRows).some((row) => view.column(row, 'lookups_refused_per_s') > 0);
  if (refused) list.push('Lookups were refused within the last minute: more came than the lookup threads can answer.');
  if (counters.updates_malformed > 0)
    list.push(`${plural(counters.updates_malformed, 'update', 'updates')} of the stream could not be read.`);
  for (const [name, value] of answer.details) {
    if (['write_stopped', 'background_errors_count'].includes(name) && value > 0)
      list.push(`The engine reports ${name.replaceAll('_', ' ')}: ${value}.`);
  }
  return list;
}
