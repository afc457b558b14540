//! Every offset, size and constant of [`ffi`](super) as a table, for the test that compares them with
//! the C headers.

use std::mem::offset_of;

use super::*;

/// A number that has to be the same in C.
#[derive(Clone, Copy)]
pub struct Fact {
    /// The C expression of the number.
    pub c: &'static str,
    /// The value of the number in this package.
    pub value: usize,
}

/// Returns all facts.
pub fn facts() -> Vec<Fact> {
    [OFFSETS, UNION_OFFSETS, SIZES, CONSTANTS].concat()
}

/// Lists the offsets of fields. A field that has another name in C gives it after `=`.
macro_rules! offsets {
    ($($type:ident { $($field:tt $(= $c:literal)?),+ $(,)? })+) => {&[$($(
        Fact {
            c: offsets!(@name $type $field $($c)?),
            value: offset_of!($type, $field),
        },
    )+)+]};
    (@name $type:ident $field:tt) => {
        concat!("offsetof(struct ", stringify!($type), ", ", stringify!($field), ")")
    };
    (@name $type:ident $field:tt $c:literal) => {
        concat!("offsetof(struct ", stringify!($type), ", ", $c, ")")
    };
}

/// Lists the sizes of structures.
macro_rules! sizes {
    ($($type:ident)+) => {&[$(
        Fact {
            c: concat!("sizeof(struct ", stringify!($type), ")"),
            value: size_of::<$type>(),
        },
    )+]};
}

/// Lists constants.
macro_rules! constants {
    ($($name:ident)+) => {&[$(
        Fact { c: stringify!($name), value: $name as usize },
    )+]};
}

const OFFSETS: &[Fact] = offsets! {
    ibv_device { node_type, transport_type, name, dev_name }
    ibv_context_ops {
        alloc_mw, dealloc_mw, poll_cq, req_notify_cq, post_send, post_recv,
    }
    ibv_context { device, ops, cmd_fd, async_fd }
    ibv_async_event { element, event_type }
    ibv_comp_channel { context, fd }
    ibv_cq { context }
    ibv_qp { context }
    ibv_mr { addr, length, lkey, rkey }
    ibv_mw { rkey }
    ibv_device_attr {
        max_mr_size, vendor_id, max_qp, max_qp_wr, device_cap_flags, max_sge, max_cqe, max_qp_rd_atom,
        max_qp_init_rd_atom, max_mw, phys_port_cnt,
    }
    ibv_port_attr { state, active_mtu, max_msg_sz, link_layer }
    ibv_wc { wr_id, status, opcode, vendor_err, byte_len, invalidated_rkey, wc_flags }
    ibv_sge { addr, length, lkey }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
    ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, invalidate_rkey,
        rdma = "wr.rdma", bind_mw,
    }
    ibv_mw_bind_info { mr, addr, length, mw_access_flags }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    rdma_event_channel { fd }
    rdma_addr { src_storage, dst_storage }
    rdma_route { addr }
    rdma_cm_id { verbs, channel, context, qp, route, ps, port_num }
    rdma_conn_param {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control,
        retry_count, rnr_retry_count, srq, qp_num,
    }
    rdma_cm_event { id, listen_id, event, status, conn = "param.conn" }
};

/// Offsets of fields in members of unions.
const UNION_OFFSETS: &[Fact] = &[
    Fact {
        c: "offsetof(struct ibv_send_wr, wr.rdma.rkey)",
        value: offset_of!(ibv_send_wr, rdma) + offset_of!(ibv_send_wr_rdma, rkey),
    },
    Fact {
        c: "offsetof(struct ibv_send_wr, bind_mw.rkey)",
        value: offset_of!(ibv_send_wr, bind_mw) + offset_of!(ibv_send_wr_bind_mw, rkey),
    },
    Fact {
        c: "offsetof(struct ibv_send_wr, bind_mw.bind_info)",
        value: offset_of!(ibv_send_wr, bind_mw) + offset_of!(ibv_send_wr_bind_mw, bind_info),
    },
];

/// Sizes of the structures that a library writes or reads as a whole.
const SIZES: &[Fact] = sizes! {
    sockaddr_storage
    ibv_context_ops ibv_async_event ibv_device_attr ibv_port_attr ibv_wc ibv_sge ibv_recv_wr ibv_send_wr
    ibv_mw_bind_info ibv_qp_cap ibv_qp_init_attr rdma_addr rdma_route rdma_conn_param
};

const CONSTANTS: &[Fact] = constants! {
    IBV_TRANSPORT_IWARP IBV_TRANSPORT_IB IBV_PORT_ACTIVE IBV_LINK_LAYER_INFINIBAND
    IBV_LINK_LAYER_ETHERNET IBV_DEVICE_MEM_MGT_EXTENSIONS IBV_DEVICE_MEM_WINDOW_TYPE_2A
    IBV_DEVICE_MEM_WINDOW_TYPE_2B IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE
    IBV_ACCESS_REMOTE_READ IBV_ACCESS_MW_BIND IBV_MW_TYPE_2 IBV_QPT_RC IBV_WR_RDMA_WRITE
    IBV_WR_SEND IBV_WR_RDMA_READ IBV_WR_BIND_MW IBV_WR_SEND_WITH_INV IBV_SEND_SIGNALED
    IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR
    IBV_WC_WR_FLUSH_ERR IBV_WC_BAD_RESP_ERR
    IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR
    IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_FATAL_ERR
    IBV_WC_RESP_TIMEOUT_ERR IBV_WC_RECV IBV_WC_WITH_IMM IBV_WC_IP_CSUM_OK IBV_WC_WITH_INV
    IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR
    IBV_EVENT_DEVICE_FATAL RDMA_PS_TCP RDMA_OPTION_ID RDMA_OPTION_ID_TOS
    RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED
    RDMA_CM_EVENT_ROUTE_ERROR RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_ERROR
    RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED
    RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL
};
