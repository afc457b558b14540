//! RoCE: captures of Linux rxe against tshark, and its text.

mod captures;
mod cm;
mod text;
