
// The deciding functions with plain integers, for compiled.py. This text is compiled behind that of credits.rs.

macro_rules! credits {
    ($available:ident, $granted:ident, $target:ident, $max:ident, $rose:ident, $quiet:ident) => {
        ReceiveCredits { available: $available, granted: $granted, target: $target, max: $max, target_rose: $rose, quiet: $quiet }
    };
}
macro_rules! export {
    ($($name:ident($credits:ident $(, $argument:ident: $type:ty)*) -> $result:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(
                available: u16, granted: u16, target: u16, max: u16, target_rose: bool, quiet: bool $(, $argument: $type)*
            ) -> $result {
                #[allow(unused_mut)]
                let mut $credits = credits!(available, granted, target, max, target_rose, quiet);
                $body
            }
        )*
    };
}

/// The fields after a change, and a result.
#[repr(C)]
pub struct After {
    available: u16,
    granted: u16,
    target: u16,
    max: u16,
    target_rose: u16,
    quiet: u16,
    result: u32,
}

fn after(credits: &ReceiveCredits, result: u32) -> After {
    let ReceiveCredits { available, granted, target, max, target_rose, quiet } = *credits;
    After { available, granted, target, max, target_rose: target_rose.into(), quiet: quiet.into(), result }
}

export! {
    x_limit(credits) -> u16 { credits.limit() }
    x_missing(credits, last: bool) -> u16 { credits.missing(last) }
    x_grantable(credits, last: bool) -> u16 { credits.grantable(last) }
    x_is_due(credits, send_immediate: bool, holds: bool) -> bool { credits.empty_message_is_due(send_immediate, holds) }
    x_next_grant(credits, send_credits: u16, strict: bool) -> u32 {
        credits.next_grant(send_credits, strict).map_or(u32::MAX, u32::from)
    }
    x_may_begin(credits, send_credits: u16, strict: bool, affordable: u16) -> bool {
        credits.may_begin(send_credits, strict, affordable)
    }
    x_post(credits, count: u16) -> After { credits.post(count); after(&credits, 0) }
    x_grant(credits, grant: u16) -> After { credits.grant(grant); after(&credits, 0) }
    x_received(credits, is_quiet: bool) -> After { let held = credits.received(is_quiet); after(&credits, held.into()) }
    x_set_target(credits, requested: u16) -> After { credits.set_target(requested); after(&credits, 0) }
    x_fit_into(credits, queue: usize) -> After { credits.fit_into(queue); after(&credits, 0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn x_affordable(buffer: usize, unread: usize, size: u32, posted: u16) -> u16 {
    affordable_receives(buffer, unread, size, posted)
}
#[unsafe(no_mangle)]
pub extern "C" fn x_owed(remaining: u32, size: u32, limit: u16) -> u16 {
    owed_credits(remaining, size, limit)
}
#[unsafe(no_mangle)]
pub extern "C" fn x_to_post(missing: u16, affordable: u16, owed: u16, posted: u16, room: u16) -> u16 {
    receives_to_post(missing, affordable, owed, posted, room)
}
#[unsafe(no_mangle)]
pub extern "C" fn x_spends_last(send_credits: u16, send_immediate: bool, waiting: bool) -> bool {
    spends_last_credit(send_credits, send_immediate, waiting)
}
#[unsafe(no_mangle)]
pub extern "C" fn x_is_quiet(data_length: u32, remaining: u32, asks: bool) -> bool {
    is_quiet(data_length, remaining, asks)
}
#[unsafe(no_mangle)]
pub extern "C" fn x_prompts(asks: bool, quiet: bool, is_2014: bool, waiting: bool) -> bool {
    prompts(asks, quiet, is_2014, waiting)
}
