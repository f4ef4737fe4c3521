//! Implements [`engine_api`] with RocksDB 11 (the crate rocksdb 0.25), a log-structured merge tree.
//!
//! Owns: the directory it is given. In it, `ingest/` holds sorted files that are about to be ingested, and
//! `SOLKV-MANIFEST` records the minimum length of RocksDB's manifest. One column family holds the pairs under their
//! 32-byte keys and the checkpoint under a one-byte key that sorts before all of them. So one log and one memtable hold
//! both, and no second column family keeps old logs alive. Must not: know the marker file, the store's lock or any
//! other engine. Threads: RocksDB's own pool for flushes and compactions, `max_background_jobs` of them (2; tuned up to
//! 4); `rocksdb-load`, which writes half of the sorted files of a chunk of a load.
//!
//! # Durability of a commit
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | the newest commits may be missing, whole; the state is that of a checkpoint |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` writes the log with `write(2)` and does not flush it; `Synced` adds `fdatasync` of the log. A batch and
//! its checkpoint are one record of the log.
//!
//! Recovery is `kPointInTimeRecovery`: replay ends at the first record that is not whole, because after a power loss
//! the unflushed end of a log may have holes. Every record after a damaged one is dropped as well, even if the device
//! has damaged a record that was flushed. The checkpoint tells which state the store has then. RocksDB does not notice
//! every hole, so the sequence numbers of the replayed batches are compared, and a gap ends the replay.
//!
//! # Settings, and why
//!
//! - **No compression** in any profile: pubkeys are random bytes, and no codec is compiled in. Values that repeat would
//!   compress, see "Tried".
//! - **[`Profile::Vanilla`]** is RocksDB as it comes: its defaults with a block cache of
//!   [`RocksdbOptions::cache_bytes`], a HyperClockCache as in every profile. If [`RocksdbOptions::bloom_bits`] asks for it, there
//!   is a full Bloom filter over whole keys. Index and filters live outside the cache and are not limited. This is a known weakness
//!   of the defaults under a memory cap, and the benchmarks show it.
//! - **[`Profile::Memory`]** is for a store that fits in memory: a hash index in data blocks, interpolation search of the index
//!   (keys are uniform), and eight memtables of 16 MiB with filters of their own, of which four are flushed as one file. Index and
//!   filters live outside the cache.
//! - **[`Profile::Tuned`]** is for a memory cap. It has the settings of Memory, with Ribbon filters instead of Bloom
//!   filters. Filters and index are in the cache, and are pinned there if they take at most seven eighths of it at the
//!   opening. If they do not fit, a get may have to read a whole filter first, and the opening warns about it.
//!   Partitions (`index_type=kTwoLevelIndexSearch`, `partition_filters=true`) are then the better choice. Memtables are
//!   charged to the cache. If filters and index are pinned and the store is larger than the cache, a sixth of the cache is one of
//!   pairs. Files have 256 MiB. If the cache leaves less than 1 GiB of the limit, files and a
//!   compaction's read-ahead are smaller. Both take memory outside of the cache: a filter while it is made, and a
//!   buffer for each file that is read. So the default cache leaves 128 MiB of the limit, as far as its own minimum of
//!   64 MiB allows. Reads are direct if the directory exceeds the memory limit at the opening, because the page cache
//!   would hold a second copy of the block cache's blocks.
//! - **[`RocksdbOptions::set`]** overrides the profile's settings.
//! - **A filter that changes** from one opening to the next holds for files written from then on.
//! - **Open files** have no limit, which is RocksDB's default, unless the process may open fewer than 131,072. Then the
//!   limit is half of that number. RocksDB's log of events has 3 files of 8 MiB.
//!
//! ## Tried
//!
//! Each knob that RocksDB's authors name for such a store is here, with the place: a page of their wiki (Tuning Guide, Setup Options
//! and Basic Tuning, Memory usage, Block Cache, Partitioned Index Filters, Direct IO, Write Stalls, Rate Limiter, MemTable, Write
//! Ahead Log, Speed Up DB Open, FAQ and others by their names), their blog, or the comments and the history in their source of 11.8.
//! "Open" names the scenario of `loadgen/scenarios/settings` that would measure it, if there is one. Results
//! `*-16-cores.jsonl` are of such a machine. Those of commits and of the recipe were cut after one repeat, so they decide nothing.
//!
//! `loadgen bench loadgen/scenarios/settings/rocksdb-*.toml` measures each setting by turns with the one that it is compared
//! with. Ratios are medians, with the lowest and the highest, of two or three repeats on a virtual machine with two cores
//! (`loadgen/results/settings`, 2026-11-22; the whole filters of tuned: 2026-11-23). Rows that name a number of repeats
//! are of 2026-11-25 and 26, and have 95% intervals in brackets. A ratio below 1 is a gain. Commits were measured for three seconds, in
//! which few compactions end, where no other time is named.
//!
//! | knob | where it is recommended | kept | figure or reason |
//! |---|---|---|---|
//! | **Filters, index and cache** | | | |
//! | no limit on open files | Tuning, Memory | yes | 10M pairs in memory: absent 1.03 (0.77 to 1.03), present 1.10 (0.99 to 1.21); an earlier trial with 46 files had absent 0.76. It is RocksDB's default |
//! | threads that open files, shards of the table of open files | Opening, Tuning | default | 16 threads. Without a limit no get looks into that table |
//! | whole keys in filters, filters for each file | Tuning | yes | RocksDB no longer has filters for each block |
//! | filters by prefixes | Prefix | refused | every get is of a whole key, and scans are of ranges |
//! | hash index in data blocks, HyperClockCache and interpolation together, against a limit on open files | blog, Cache | in both profiles | present 0.87 (0.82 to 1.05), absent 1.06 (1.01 to 1.31) |
//! | HyperClockCache alone | Cache | in all profiles | against the LRU cache of before: present 0.92 (0.89 to 0.97), absent 1.21 (1.06 to 1.44). It is RocksDB's default since 10.7. The default profile had the LRU cache until 2026-11-26, so results that were made before are with it |
//! | LRU's shards and its part for blocks of high priority | Tuning, Cache | no | HyperClockCache has neither |
//! | a cache that refuses blocks beyond its size | Cache | refused | a get would fail |
//! | Ribbon filter of 20 bits in memory | blog | no | absent 1.11 (0.91 to 1.32) |
//! | the earlier tuned profile, with a two-level index and partitioned Bloom filters: pinned, against not pinned | Partitions, Cache | pinned, where they fit | 50M pairs, cold, 4% cap: present p50 0.78, p99 0.46; absent mean 0.69, p99 0.46; 18% cap: within the spread of the repeats |
//! | one-level index and whole filters, pinned, against partitions that are not | Partitions, Cache | yes | 4%: present p50 0.68, absent mean 0.39, p50 0.38; 18%: present p50 0.93, absent mean 0.63, p50 0.43 |
//! | the same with Ribbon filters | blog | yes | 4%: present p50 0.66, absent mean 0.38, p99 0.06; 18%: present p50 0.93, absent mean 0.58, p99 0.24 |
//! | tuned: filters and index outside of the cache | Memory | no | killed by the 4% cap |
//! | tuned under a cap of 4% with filters of 12 bits, 50M pairs, five repeats, here and in the next four rows | Tuning | no | filters and index exceed seven eighths of the default cache, and are not pinned, as those of 10 bits, the default, are not at this size: absent p50 1.19 (0.82 to 1.26), p99 0.10 (0.08 to 0.11); present p50 1.09 (0.96 to 1.19), mean 2.05 (1.84 to 2.32), p99 8.0 (6.9 to 9.5) |
//! | of 14 bits, pinned all the same (`--bloom 14 --set metadata_cache_options={unpartitioned_pinning=kAll;}`) | Cache | no | absent mean 0.54 (0.42 to 0.63), p50 0.80 (0.55 to 0.88), p99 0.07 (0.05 to 0.08); present p50 1.05 (0.92 to 1.20), p99 0.65 (0.52 to 0.77). Pinned blocks exceed the default cache, and compactions need the rest. For a store that is only read it is the best setting here |
//! | the default profile with a cache of 16 MB and Bloom filters of 8 bits | Tuning | no | absent mean 1.32 (1.06 to 1.71), p50 0.88 (0.58 to 1.24), p99 2.6 (2.1 to 3.2); present p50 1.13 (0.89 to 1.43) |
//! | the same with Ribbon filters of 14 bits | blog | no | absent mean 0.60 (0.48 to 0.76), p50 0.84 (0.60 to 1.11), p99 0.08 (0.06 to 0.08); present p50 1.09 (0.90 to 1.47), p99 1.17 (0.94 to 1.45). Filters and index outside of the cache are not limited |
//! | the memory profile with the same | blog | no | absent mean 0.56 (0.50 to 0.68), p50 0.80 (0.69 to 0.87), p99 0.06 (0.06 to 0.07); present p50 1.18 (0.92 to 1.30), p99 1.23 (0.98 to 1.30) |
//! | no filters in the last level (`optimize_filters_for_hits`) | Memory, Tuning | no | tuned under a cap of 4%, five repeats, here and in the next row: absent mean 48 (46 to 52), because every absent key costs a read; present p50 0.98 (0.87 to 1.07) |
//! | 16 KiB blocks; an index with a restart every 16 entries | Setup, Memory, source | no | blocks: present p50 1.09 (0.98 to 1.21), absent mean 1.10 (1.05 to 1.17); index: present p50 0.98 (0.97 to 1.02), absent mean 1.02 (0.96 to 1.05) |
//! | the cache's part of an 18% cap | Setup | five eighths, a quarter | zipfian gets: tuned 1.23 at a quarter, 1.08 at five eighths, 1.13 at three quarters; vanilla level at a quarter and a half |
//! | its part of a 4% cap, 50M pairs, three repeats | Setup | half, and a tuned one of 64 MiB | default profile, against 8 MB: with 32 MB uniform gets mean 1.05 (0.83 to 1.18), zipfian 1.02 (0.94 to 1.12); with 64 MB 1.03 (0.70 to 1.35), 0.98 (0.89 to 1.11). Tuned, 96 MB against 80 MB: 0.96 (0.85 to 1.14), 0.93 (0.63 to 1.44) |
//! | filters and index in the cache, those of level 0 pinned | Setup, Cache | tuned | see the rows of tuned |
//! | memtables charged to the cache (`WriteBufferManager`) | Setup, Cache | tuned | it makes the cache's size a limit on both |
//! | an index with first keys, other kinds of shortening | source | no | for iterators over short ranges |
//! | a cache of pairs (`row_cache`) in the same memory, zipfian gets of 50M pairs under a cap of 18%, after 15 seconds of them, three repeats | source | a sixth, in tuned | tuned, with a sixth of its memory for pairs: mean 0.82 (0.79 to 0.85), p50 0.35 (0.32 to 0.42), p99 1.02 (0.85 to 1.17); with half of it mean 0.82 (0.70 to 1.08). Default profile with 24 MB for blocks and 120 MB for pairs, against tuned: mean 0.92 (0.85 to 1.04), p99 1.55 (1.40 to 1.73) |
//! | the same sixth for other reads of tuned, 18% cap, three repeats (`rocksdb-rows-tuned.toml`) | source | see above | uniform gets mean 0.95 (0.80 to 1.23); absent ones, cold, mean 0.95 (0.83 to 1.20), p50 1.09 (1.03 to 1.12); beside 10,000 puts a second present mean 1.04 (0.91 to 1.16), commit mean 0.77 (0.64 to 0.99). None is decided. One of the three zipfian runs with it was killed under the cap, and one uniform run without it came to 552 of 576 MB: where the measuring thread takes another arena of glibc's heap than the warming one, the memory of evicted blocks stays in the first. With a cache of 200 MB two of eight runs came to 357 and 362 MB, the others to 238 at most; with one arena eight of eight to 236 at most (`arenas-*.jsonl`). The service has one arena under 1 GiB, and the bench has since. In the service on a stream at full speed (`rocksdb-rows-live.toml`): 84,600 to 87,800 zipfian events a second against 71,700 to 80,800 without, 44,000 to 56,300 uniform ones against 48,500 to 52,300. Results of tuned before 2026-11-26, and those of that day in `live`, are without it |
//! | a second cache of compressed blocks; one on a faster device | Cache, Direct | no | no codec is compiled in; there is one device |
//! | **Blocks and files** | | | |
//! | blocks of 2 KiB | Tuning | no | present 1.06 (1.03 to 1.78), absent 1.04 (0.91 to 1.05) |
//! | blocks of 8 KiB; a restart every 4 keys; keys apart from values; `mmap` reads | Tuning | no | two repeats or one, present 0.79; 1.03; 0.98; 0.78, absent 1.09; 0.94; 1.09; 1.09. The figures of present keys are of one repeat; two lines of the same settings differ by a tenth, see the next row. The first again, in the profile for memory, three repeats: present p50 0.96 (0.88 to 1.05), absent 1.05 (0.91 to 1.15) |
//! | files of 256 MiB in memory | Tuning | tuned | absent 0.91, present 0.91, two repeats or one. A sorted load makes its files of half a million pairs whatever this is, so these figures say how much lines of the same settings differ |
//! | mapped files without a block cache (`--set cache=none --set allow_mmap_reads=true`), against the profile for memory, 10M pairs, three repeats | Tuning, in memory | no | the default profile with it, 20 bits and a restart every 4 keys: present p50 0.90 (0.77 to 1.08), absent 1.00 (0.92 to 1.05); the profile for memory with it: 0.95 (0.81 to 1.04), 1.03 (0.93 to 1.11) |
//! | the latter with blocks of 1 KiB and `uniform_cv_threshold=0.5` | Tuning, in memory | no | present p50 0.83 (0.77 to 0.86), mean 0.82 (0.71 to 0.96); absent p50 1.05 (0.90 to 1.15). A mapped page that the device cannot read ends the process without an error. The targets in memory measure this line beside the profiles |
//! | gets that do not compare checksums | Tuning, in memory | refused | a get would return damaged bytes, as one of LMDB does |
//! | hash index of files by prefixes (`index_type=kHashSearch`) | Tuning, in memory | no | three repeats: present p50 0.98 (0.69 to 1.46), absent 1.02 (0.94 to 1.08) |
//! | PlainTable | Tuning, in memory | refused | with prefixes it cannot seek in key order, which loads, copies and digests need, and without prefixes its index is a binary search. It has no checksums of blocks, so there would be no scrub. In RocksDB's own measurement 32 threads take 142 and 220 ns a get together, which is 4.5 and 7.0 us on each |
//! | CuckooTable | blog | refused | for stores that are only read, whose keys have one length. The checkpoint's key has another |
//! | `bloom_locality` | Tuning | no effect | PlainTable alone reads it |
//! | blocks that do not cross a page of the file (`block_align`), 20M pairs, cold, 18% cap, five repeats | source | no | default profile, which reads through the page cache: present p50 1.00 (0.71 to 1.16), p99 0.75 (0.67 to 0.87), bytes read 0.52; tuned, whose reads are direct: p50 1.07 (0.84 to 1.25), p99 1.03 (0.91 to 1.14), bytes read 0.92; batches of 100 not decided. Not decided in tuned; `--set block_align=true` |
//! | direct reads in the default profile, the same | Direct | tuned has them; the default profile stays RocksDB's own | present p50 0.74 (0.59 to 1.20), p99 0.58 (0.44 to 0.85); batches of 100: mean 0.75 (0.59 to 1.17) |
//! | LZ4 and zstd in all levels, default profile with 20 bits, 10M pairs, three repeats (`make bench-codecs`, `codecs-*.jsonl`), here and in the next row | Setup, Tuning, FAQ | no | unique values: LZ4 76.1 bytes a pair where 76.2 are without, because RocksDB keeps a block uncompressed unless an eighth is saved; 72.1 with `compression_opts={max_compressed_bytes_per_kb=1000;}`, zstd with it 71.2. Rates of a sorted load 0.80 (0.61 to 1.06), 0.75 (0.62 to 0.92), 0.56 (0.47 to 0.68); present gets in memory p50 0.98, 0.95, 0.96, cold under 18% 0.97, 0.99, 1.01, none decided. No codec is compiled in |
//! | the same with half a million owners as values, and dictionaries of zstd | Compression | open | LZ4 75.2 bytes a pair, 68.8 with that option; zstd 67.8 with it, and 58.3 with dictionaries of 16 KiB. Rates of a sorted load 0.77, 0.76, 0.56, 0.26 (0.25 to 0.27); present gets in memory p50 1.00, 0.97, 1.00, 1.02, cold 1.05, 1.11, 1.08, 1.19 (0.92 to 1.54): not decided. For values that repeat a dictionary is worth it where disk is short |
//! | large values in files of their own (BlobDB) | blog | refused | values have 32 bytes |
//! | checksum, version of the format | source | default | XXH3, and 7, the newest. `--set` does not take `checksum`, because it could be none |
//! | **Memtables and commits** | | | |
//! | memtables of 16 MiB, six | Tuning, Stalls | no | synced commit of 1000 puts, mean: 0.53 (0.43 to 0.56), bytes written 1.4 to 1.7 times |
//! | memtables of 16 MiB, eight, of which four are flushed as one file | Tuning, Stalls | in both profiles | 0.50 (0.49 to 0.66), bytes written as with one of 64 MiB; in a few runs of the whole profiles, whose memtables also have filters, about 0.8 |
//! | memtables of 8 MiB, six | Tuning | no | 0.57 (0.42 to 0.71), bytes written twice |
//! | memtables of 256 MiB | Tuning | no | 0.97 (0.86 to 1.09) |
//! | the memory profile's memtables for ten seconds, three repeats | Tuning | yes | against the default profile with 20 bits: commit mean 0.70 (0.60 to 0.89), p50 0.65 (0.48 to 0.92), p99 1.15 (0.83 to 1.43), bytes written 1.3 times: not decided by the rule of `loadgen compare`, with three repeats |
//! | on top of them, one by one, the same: no adaptive yield; sixteen memtables of 8 MiB, of which eight are flushed as one file; no filters in memtables; huge pages for memtables; twenty files of level 0 before they are compacted; flushes of the log and of files as they grow; flushes and compactions past the page cache | Tuning, Stalls, Direct | no | commit mean 1.03 (0.84 to 1.25); 0.91 (0.70 to 1.19); 0.97 (0.63 to 1.49); 1.00 (0.60 to 1.67); 1.06 (0.74 to 1.54); 1.04 (0.64 to 1.71); 1.12 (0.81 to 1.56). None is decided: three repeats of ten seconds, of which one was much slower for all |
//! | a memtable's Bloom filter | Tuning | memory, tuned | commit mean without it 0.97 (0.63 to 1.49), and a get searches up to eight memtables |
//! | batches in key order (`sort_batches`), and a hint of the place for each prefix | FAQ, MemTable | no | in the profile for memory for ten seconds, three repeats, here and in the next row, mean of a commit: 1.00 (0.68 to 1.26); with a hint 0.93 (0.75 to 1.07); a hint for each first byte, unsorted 1.02 (0.68 to 1.28). None is decided |
//! | memtables of hash tables (`hash_linkedlist`, `prefix_hash`) | Tuning, MemTable | no | the first: mean 0.98 (0.61 to 1.34), p50 0.66 (0.37 to 0.97), p99 1.18 (0.98 to 1.32); the second: 1.04 (0.66 to 1.38), 0.82 (0.47 to 1.15), 1.22 (0.88 to 1.64). They are sorted when they are flushed and at each scan, so commits wait then. The targets of writes measure the first beside the profiles |
//! | memtables of vectors | MemTable, FAQ | refused | each get copies and sorts the memtable that is written to |
//! | updates in place (`inplace_update_support`) | MemTable | refused | a reader would see values newer than its snapshot |
//! | `enable_pipelined_write` | Pipelined Write | no | the same: mean 1.03 (0.75 to 1.29). There is one writer, so nothing is to be gained |
//! | writes of low priority | Low Priority Write | no | somebody waits for every commit |
//! | `unordered_write`, `manual_wal_flush` | blog | refused | they change which failures a commit survives |
//! | the log's next file made ahead | source | no | 0.77 (0.77 to 1.08). Not decided, and `--set` does not take it, as all that changes a log's file |
//! | no adaptive yield of the writer | source | no | 0.80 (0.79 to 0.83); with memtables of 16 MiB 1.2 |
//! | recycled logs | Log | no | 0.97 (0.77 to 1.06). Recovery with them has lost batches before (RocksDB's own comment) |
//! | one writer to a memtable; four background jobs; flushes of the log as it grows | Tuning, Setup, Log | the last in tuned | 0.99; 0.87 (0.77 to 1.11); 0.80 (0.76 to 0.98) |
//! | logs on another device, compressed logs | Log | no | there is one device; no codec is compiled in |
//! | a limit on all logs | Log, Opening | no effect | there is one column family |
//! | **Compactions** | | | |
//! | a reader while 50,000 puts a second are committed, synced, in tuned, 20M pairs, 18% cap, three repeats: flushes and compactions past the page cache; flushed blocks put into the cache; 8 files of level 0 before they are compacted; a first level of 64 MiB | Direct, Stalls, source | no | present mean 1.03, 0.97, 0.97, 1.01 and commit mean 1.17 (0.99 to 1.25), 1.03, 1.00, 1.05: within the spread of the repeats |
//! | a limit on the bytes that flushes and compactions write a second, 40 MiB; a reader beside 50,000 puts a second, 20M pairs, 36% cap, three repeats, here and in the next row | Setup, Limiter | no | tuned: present mean 0.96 (0.89 to 1.02), p99 0.79 (0.69 to 1.11), commit mean 0.95 (0.85 to 1.04); default profile: 1.03 (0.98 to 1.05), commit mean 1.13 (0.76 to 1.56). None is decided |
//! | compactions past the page cache on both sides; cached blocks of removed files dropped at once | source | no | the first, default profile: present mean 1.05 (0.96 to 1.14), commit mean 1.19 (0.70 to 1.79); the second, tuned: present mean 0.94 (0.87 to 1.01), commit mean 0.94 (0.81 to 1.07). None is decided |
//! | universal compaction, 10M pairs, three repeats | Tuning | no | default profile: rate of a shuffled load 1.13 (0.83 to 1.31), mean of a synced commit of 1000 puts for fifteen seconds 0.92 (0.74 to 1.21); profile for memory: 0.95 (0.82 to 1.29), 0.88 (0.82 to 1.05). None is decided, and it takes up to twice the space for a time |
//! | a shuffled load of 10M pairs, three repeats, rate against the default profile: six memtables of 16 MiB | Tuning | in memory and tuned, eight | 1.35 (0.97 to 2.21), bytes written 1.4 times; with a first level of 64 MiB 1.39 (1.08 to 1.90). Neither is decided. 16 cores: 1.59 and 1.50 |
//! | the same: two subcompactions; four background jobs; level 0 with 1000 files and no stalls; memtables of 256 MiB; the last two together with subcompactions | Tuning, Stalls, FAQ | no | 0.97 (0.91 to 1.01); 1.01 (0.88 to 1.20); 1.01 (0.87 to 1.08); 0.68 (0.58 to 0.78); 0.69 (0.59 to 0.75). 16 cores: 1.04, 1.05, 1.04, 0.77, 0.76 |
//! | levels of dynamic size, `kMinOverlappingRatio` | Setup | default | RocksDB has made them its defaults since that page was written |
//! | other multipliers and numbers of levels | Tuning | no | the guide advises against it |
//! | read-ahead of compactions | Tuning, Direct | default | 2 MiB, less in tuned under a small limit |
//! | rates and debts at which writes are delayed | Stalls | default | they matter while compactions lag. A shuffled load without any stalls has the same rate (row of subcompactions) |
//! | compactions by age (`ttl`, `periodic_compaction_seconds`) | source | default | they are for compaction filters and old formats, and here there is neither |
//! | files removed slowly (`SstFileManager`) | Setup | no | for file systems that are mounted with `discard` |
//! | **Reads of many pairs, loads, opening** | | | |
//! | `MultiGet` | MultiGet | yes | batches of gets |
//! | pinned results of gets (`PinnableSlice`) | source | yes | a get copies 32 bytes out of the block and no more |
//! | `optimize_multiget_for_io` | MultiGet | default | only `async_io` asks for it |
//! | `async_io`, `io_uring` | blog | no | the first needs coroutines, which the crate does not build. Open: the crate compiles the second in where liburing is installed, and RocksDB asks the program whether to use it |
//! | scans that read ahead and fill no cache | source | yes | 2 MiB at once; not measured against less |
//! | files written by the loader and ingested | FAQ | yes | sorted loads. Open: files that are flushed while they are written |
//! | loads without a log | FAQ | refused | a killed load would begin again |
//! | opening without statistics of each file (`skip_stats_update_on_db_open`) | Opening | default | three repeats with 16 cores, 20M pairs, cold: 0.52 s (0.29 to 1.37) against 1.31 s (0.47 to 1.70); tuned 0.80 s (0.62 to 0.92) against 0.60 s (0.50 to 0.64). Not decided |
//! | recovery without a flush | source | open | nobody has checked the search for gaps in the log with it |
//! | files that are opened after the store | source | refused | damage would be found by gets |
//! | **The build and the system** | | | |
//! | jemalloc (`LD_PRELOAD`), profile for memory, 10M pairs in memory, three repeats, here and in the next row (`allocators-*.jsonl`) | FAQ | no | present p50 1.06 (0.75 to 1.50), p99 1.02 (0.76 to 1.37): not decided. The crate's feature would replace the allocator of the whole process |
//! | huge pages | Huge pages | no | for all that is allocated, cached blocks with it (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`): present p50 0.98 (0.89 to 1.09), not decided. For memtables: commit mean 1.02. For PlainTable's index: see there |
//! | the instructions of the processor at hand | installation | open | the build is for x86-64-v2 with carry-less multiplication, so CRC32C is the hardware's |
//! | statistics | Tuning | no | 5 to 10% by RocksDB's own account. Its log gets its own counters every ten minutes (`stats_dump_period_sec`), which is the default |
//! | advice to the kernel that reads are random (`advise_random_on_open`) | source | default | it is on |
//!
//! # A manifest that is cut or damaged
//!
//! RocksDB takes the first incomplete record of its manifest for the manifest's end, and removes every file that the
//! lost records named. So after each flush, compaction and load the flushed length is recorded in `SOLKV-MANIFEST`. A
//! manifest that is not whole up to that length is refused before RocksDB reads it, also for reading alone.
//!
//! # When the disk is full
//!
//! `begin` checks the free space and returns [`ErrorKind::FreeSpace`] below [`RocksdbOptions::disk_reserve_bytes`].
//! Nothing was touched then, and the next `begin` after space was freed succeeds. A commit that meets a full disk all
//! the same returns [`ErrorKind::Reopen`]: the log may hold a part of the batch or all of it, and the library offers no
//! way to tell. Reads continue, and after opening again the checkpoint tells.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace
//! [`ErrorKind::Reopen`]: engine_api::ErrorKind::Reopen

mod bulk;
mod descriptor;
mod engine;
mod error;
mod files;
mod frame;
mod manifest;
mod notes;
mod reader;
mod replay;
mod scrub;
mod set;
mod settings;
mod store;
mod write;

pub use descriptor::DESCRIPTOR;
pub use engine::RocksdbEngine;
pub use set::settings;

/// Key of the checkpoint: a prefix of the all-zero pubkey, so that it sorts before every pair.
pub(crate) const CHECKPOINT_KEY: &[u8] = &[0];

/// Smallest possible key of a pair, where scans begin.
pub(crate) const FIRST_PAIR: engine_api::Key = [0; 32];

/// A set of RocksDB settings. Files written with one profile can be opened with any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// RocksDB's defaults, apart from the block cache's size.
    #[default]
    Vanilla,
    /// Settings for a store that fits in memory.
    Memory,
    /// Settings for uniform keys under a memory cap.
    Tuned,
}

impl Profile {
    /// Returns the profile with this name; RocksDB's defaults for any other name.
    fn of(name: &str) -> Self {
        match name {
            "memory" => Self::Memory,
            "tuned" => Self::Tuned,
            _ => Self::Vanilla,
        }
    }
}

/// Options for opening a RocksDB store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksdbOptions {
    pub profile: Profile,
    /// Bits per key of the Bloom filter. `None` writes no filters and ignores those in existing files.
    pub bloom_bits: Option<u32>,
    /// Size of the block cache in bytes; in [`Profile::Tuned`] the cache of pairs is a part of it.
    pub cache_bytes: u64,
    /// Memory in bytes that the process may use. The tuned profile makes direct reads if the store is larger.
    pub memory_limit_bytes: u64,
    /// Free bytes of the file system below which `begin` returns `FreeSpace`.
    pub disk_reserve_bytes: u64,
    /// RocksDB's own settings that replace the profile's, as names and values of its options files. [`settings`] lists
    /// the names.
    pub set: Vec<(String, String)>,
}

impl Default for RocksdbOptions {
    /// The cache has 256 MiB, memory has no limit, and the reserve has 32 MiB. A small reserve is enough because the
    /// log allocates its space ahead, so a commit takes little. Flushes and compactions take space at times when they
    /// may fail without losing anything.
    fn default() -> Self {
        Self {
            profile: Profile::Vanilla,
            bloom_bits: None,
            cache_bytes: 256 << 20,
            memory_limit_bytes: u64::MAX,
            disk_reserve_bytes: 32 << 20,
            set: Vec::new(),
        }
    }
}
