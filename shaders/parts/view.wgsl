// A view is (offset of the first row, row stride), both in quads of four floats.
fn row_at(view: vec2<u32>, row: u32) -> u32 {
    return view.x + row * view.y;
}
