
// The decisions on segments with plain integers, for compiled.py. This text is compiled behind that of segments.rs.

#[unsafe(no_mangle)]
pub extern "C" fn s_place(
    begun: bool, missing: u32, data_length: u32, remaining: u32, max: u32, tolerates: u8,
) -> u8 {
    let missing = if begun { Some(missing) } else { None };
    place(missing, data_length, remaining, max, tolerates & 1 != 0, tolerates & 2 != 0) as u8
}
#[unsafe(no_mangle)]
pub extern "C" fn s_longest_payload(unsent: usize, max_payload: usize, is_single: bool) -> usize {
    longest_payload(unsent, max_payload, is_single)
}
#[unsafe(no_mangle)]
pub extern "C" fn s_write_is_first(has_write: bool, write: u64, has_message: bool, message: u64) -> bool {
    write_is_first(has_write.then_some(write), has_message.then_some(message))
}
