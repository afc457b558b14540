//! RoCE: captures of Linux rxe against tshark, and connections made up packet by packet.

mod captures;
mod cm;
mod made;
mod talk;
