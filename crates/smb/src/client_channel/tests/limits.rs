//! Limits of outstanding requests and descriptors.

use super::*;

#[test]
fn outstanding_requests_are_limited() {
    let one = [descriptor(0, 1, 10)];
    let mut client = ClientChannel::new();
    for id in 0..MAX_PENDING as u64 {
        assert!(client.has_room());
        translated(&mut client, &write_by_rdma(id, 0, 10, V1, &one));
    }
    assert!(!client.has_room());
    answer_of(&mut client, &write_answer(77, 10)).unwrap();
    assert!(client.has_room());
}

#[test]
fn outstanding_descriptors_are_limited() {
    let many = vec![descriptor(0, 1, 10); 4095];
    let mut client = ClientChannel::new();
    let mut requests = 0;
    while client.has_room() {
        translated(&mut client, &read(requests, 0, 10, V1, &many));
        requests += 1;
    }
    assert_eq!(requests, (MAX_DESCRIPTORS / 4095) as u64);
    for id in 0..requests {
        assert!(!client.has_room() || id > 0);
        answer_of(&mut client, &read_answer(id, b"x", 0)).unwrap();
    }
    assert!(client.has_room());
    assert_eq!((client.pending(), client.descriptors), (0, 0));
}

#[test]
fn requests_of_a_compound_are_limited() {
    let one = [descriptor(0, 1, 10)];
    let elements: Vec<_> = (0..=MAX_PENDING as u64)
        .map(|id| write_by_rdma(id, 0, 0, V1, &one))
        .collect();
    let mut client = ClientChannel::new();
    translated(&mut client, &compound(&elements[1..]));
    assert!(matches!(
        refused(&compound(&elements)),
        Refusal::TooMany { .. }
    ));
    let many = vec![descriptor(0, 1, 10); 4095];
    let elements: Vec<_> = (0..=16).map(|id| read(id, 0, 10, V1, &many)).collect();
    translated(&mut ClientChannel::new(), &compound(&elements[1..]));
    assert!(matches!(
        refused(&compound(&elements)),
        Refusal::TooMany { .. }
    ));
}
