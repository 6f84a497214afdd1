    // The tile, its query heads, and this part's keys, starting at a whole page.
    let tile = params.tiles_at + params.tile_words * (params.first_tile + id.x);
    let first_row = step[tile];
    let rows = step[tile + 1u];
    let first_position = step[tile + 2u];
    let table = params.pages_at + step[tile + 3u];
    let head_tiles = (params.group + {{ heads_tile - 1 }}u) / {{ heads_tile }}u;
    let heads_at = params.first_group + id.y;
    let kv_head = heads_at / head_tiles;
    let first_head = kv_head * params.group + heads_at % head_tiles * {{ heads_tile }}u;
    let last_head = (kv_head + 1u) * params.group - 1u;

{% if both_ways %}
    let span_begin = step[tile + 4u];
    let span_end = step[tile + 5u];
    let ahead = min(params.window, 0x40000000u) - 1u;
    let end = min(first_position + rows + ahead, span_end);
    let begin = max(first_position + 1u - min(params.window, first_position + 1u), span_begin);
{% else %}
    let end = first_position + rows;
    // As `first_seen`, which naga does not see to be uniform.
    let window_begin = first_position + 1u - min(params.window, first_position + 1u);
    let begin = max(window_begin, first_position - first_position % params.chunk);
{% endif %}
    let pages = (end + 31u) / 32u - begin / 32u;
    let splits = step[4];
    let share = (pages + splits - 1u) / splits;
    let start = (begin / 32u + id.z * share) * 32u;
    let to = min(end, start + share * 32u);
