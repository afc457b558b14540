
// The checker with plain integers, for compiled.py. This text is compiled behind that of relation.rs.


macro_rules! export {
    ($($name:ident($end:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(
                available: u16, granted: u16, target: u16, max: u16, flags: u8, send_credits: u16
                $(, $argument: $type)*
            ) -> u128 {
                #[allow(unused_mut)]
                let mut $end = Relation {
                    send_credits: send_credits.into(), granted: granted.into(), available: available.into(),
                    target: target.into(), max: max.into(), target_rose: flags & 1 != 0, quiet: flags & 2 != 0,
                    send_immediate: flags & 4 != 0, holds_first: flags & 8 != 0, strict: flags & 16 != 0,
                    v2014: flags & 32 != 0,
                };
                let is_step: bool = $body;
                let flags = u128::from($end.target_rose) | u128::from($end.quiet) << 1
                    | u128::from($end.send_immediate) << 2 | u128::from($end.holds_first) << 3
                    | u128::from(is_step) << 6;
                u128::from($end.send_credits) | u128::from($end.granted) << 20 | u128::from($end.available) << 40
                    | u128::from($end.target) << 64 | flags << 84
            }
        )*
    };
}

export! {
    r_post(end, count: u16, waiting: bool) { end.post(count.into(), waiting) }
    r_send(end, grant: u16, called_for: bool) { end.send(grant.into(), called_for) }
    r_receive(end, requested: u16, more: u16, is_quiet: bool, asks: bool, waiting: bool) {
        let message = Received {
            credits_requested: requested.into(), credits_granted: more.into(), quiet: is_quiet, asks,
        };
        end.receive(message, waiting)
    }
    r_may_rest(end, waiting: bool) { end.may_rest(waiting) }
    r_missing(end, waiting: bool, count: u16) { end.missing(waiting) == u32::from(count) }
}
