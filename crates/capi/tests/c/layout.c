/* Prints the sizes of the public structures and the offsets of their fields. */
#include <smbdirect.h>
#include <stdio.h>

#define SIZE(type) printf("%-40s %4zu bytes\n", #type, sizeof(struct type))
#define FIELD(type, field) printf("    %-36s %4zu\n", #field, offsetof(struct type, field))

int main(void)
{
    SIZE(smbdirect_error);
    FIELD(smbdirect_error, code);
    FIELD(smbdirect_error, message);
    SIZE(smbdirect_buffer_descriptor);
    FIELD(smbdirect_buffer_descriptor, offset);
    FIELD(smbdirect_buffer_descriptor, token);
    FIELD(smbdirect_buffer_descriptor, length);
    SIZE(smbdirect_settings);
    FIELD(smbdirect_settings, size);
    FIELD(smbdirect_settings, transport);
    FIELD(smbdirect_settings, send_credit_target);
    FIELD(smbdirect_settings, receive_credit_max);
    FIELD(smbdirect_settings, max_send_size);
    FIELD(smbdirect_settings, max_receive_size);
    FIELD(smbdirect_settings, max_fragmented_receive_size);
    FIELD(smbdirect_settings, max_read_write_size);
    FIELD(smbdirect_settings, keepalive_interval_ms);
    FIELD(smbdirect_settings, keepalive_response_timeout_ms);
    FIELD(smbdirect_settings, active_negotiation_timeout_ms);
    FIELD(smbdirect_settings, passive_negotiation_timeout_ms);
    FIELD(smbdirect_settings, busy_poll_us);
    FIELD(smbdirect_settings, options);
    FIELD(smbdirect_settings, options_count);
    SIZE(smbdirect_option);
    FIELD(smbdirect_option, name);
    FIELD(smbdirect_option, value);
    SIZE(smbdirect_connection_info);
    FIELD(smbdirect_connection_info, size);
    FIELD(smbdirect_connection_info, local_address);
    FIELD(smbdirect_connection_info, remote_address);
    FIELD(smbdirect_connection_info, max_send_size);
    FIELD(smbdirect_connection_info, send_credits);
    FIELD(smbdirect_connection_info, messages_sent);
    FIELD(smbdirect_connection_info, regions);
    return 0;
}
