/* A packet switch in user space, with the rate, delay, jitter and loss of every node's link.
 *
 *     switch FD RATE DELAY JITTER LOSS  [FD RATE DELAY JITTER LOSS ...]
 *
 * FD is an inherited AF_PACKET socket (with virtio headers) on port 0, 1, ... of the switch; RATE is
 * in bytes per second and counts every byte on the wire; DELAY and JITTER are seconds one way, half
 * of a DELAY for either end of a path; LOSS is the chance of a packet to be lost. The node of port i
 * has the hardware address 02:00:00:00:HI:LO of i. A packet leaves when its last byte has passed the
 * sender's link, the delays of both ends, and the receiver's link, which it may enter while it is
 * still arriving (cut-through); a link carries one packet at a time. The packets of one receiver stay in order.
 *
 * Commands come by standard input, a line each; every one is answered by a line:
 *     stats        {"packets": ..., "bytes": ..., "dropped": ..., "lost": ..., "late": ...}
 *     cut I        port I drops everything
 *     restore I    until now
 *     link I RATE DELAY JITTER LOSS
 * It ends with its standard input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORTS = 256, FRAME = 66000, HEADER = sizeof(struct virtio_net_hdr) };
static const double QUEUE_SECONDS = 1.0;   /* of waiting in front of a receiver's link */
static const int64_t QUEUE_BYTES = 4 << 20; /* at least, however slow the link is */
static const int FRAMING = 24;             /* preamble, checksum and gap of an Ethernet frame */
static const int FORWARDING = 14 + 20 + 32; /* headers that every further segment repeats */

struct packet {
    struct packet *next;
    double due;
    int size, wire;
    unsigned char data[];
};

struct port {
    int fd, cut;
    double rate, delay, jitter, loss;
    double up_free, down_free; /* when the link's two directions have passed all bytes so far */
    struct packet *first, *last;
    int64_t queued;
};

static struct port ports[PORTS];
static int count;
static uint64_t packets, bytes, dropped, lost;
static double late_sum, late_worst;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Bytes on the wire of a packet that the receiver's or sender's stack takes for several. */
static int wire_bytes(const unsigned char *frame, int size) {
    const struct virtio_net_hdr *header = (const void *)frame;
    int length = size - HEADER, segments = 1;
    if (header->gso_type != VIRTIO_NET_HDR_GSO_NONE && header->gso_size > 0 && length > header->hdr_len)
        segments = (length - header->hdr_len + header->gso_size - 1) / header->gso_size;
    return length + (segments - 1) * FORWARDING + segments * FRAMING;
}

static void forward(int from, const unsigned char *frame, int size, double at) {
    const unsigned char *to = frame + HEADER;
    int target = to[4] << 8 | to[5];
    if (to[0] != 2 || to[1] || to[2] || to[3] || target >= count) return;
    struct port *up = &ports[from], *down = &ports[target];
    int wire = wire_bytes(frame, size);
    double start = larger(at, up->up_free);
    up->up_free = start + wire / up->rate;
    if (up->cut || down->cut || drand48() < up->loss || drand48() < down->loss) {
        lost++;
        return;
    }
    if (down->queued + wire > larger(QUEUE_BYTES, QUEUE_SECONDS * down->rate)) {
        dropped++;
        return;
    }
    double delay = 0.5 * (up->delay + down->delay);
    double jitter = 0.5 * (up->jitter + down->jitter) * drand48();
    double first = larger(down->down_free, start + delay + jitter);
    double due = larger(first + wire / down->rate, up->up_free + delay + jitter);
    down->down_free = due;
    struct packet *packet = malloc(sizeof *packet + size);
    if (!packet) {
        dropped++;
        return;
    }
    packet->next = NULL;
    packet->due = due;
    packet->size = size;
    packet->wire = wire;
    memcpy(packet->data, frame, size);
    if (down->last) down->last->next = packet;
    else down->first = packet;
    down->last = packet;
    down->queued += wire;
}

static void deliver(struct port *port, double at) {
    while (port->first && port->first->due <= at) {
        struct packet *packet = port->first;
        double late = at - packet->due;
        late_sum += late;
        if (late > late_worst) late_worst = late;
        packets++;
        bytes += packet->wire;
        if (send(port->fd, packet->data, packet->size, MSG_DONTWAIT) < 0) dropped++;
        port->queued -= packet->wire;
        port->first = packet->next;
        if (!port->first) port->last = NULL;
        free(packet);
    }
}

static void answer(char *line) {
    int i;
    double rate, delay, jitter, loss;
    if (!strncmp(line, "stats", 5)) {
        printf("{\"packets\": %llu, \"bytes\": %llu, \"dropped\": %llu, \"lost\": %llu, \"late\": %.9f, \"worst\": %.9f}\n",
               (unsigned long long)packets, (unsigned long long)bytes, (unsigned long long)dropped,
               (unsigned long long)lost, packets ? late_sum / packets : 0.0, late_worst);
    } else if (sscanf(line, "cut %d", &i) == 1 && i >= 0 && i < count) {
        ports[i].cut = 1;
        printf("{}\n");
    } else if (sscanf(line, "restore %d", &i) == 1 && i >= 0 && i < count) {
        ports[i].cut = 0;
        printf("{}\n");
    } else if (sscanf(line, "link %d %lf %lf %lf %lf", &i, &rate, &delay, &jitter, &loss) == 5 &&
               i >= 0 && i < count && rate > 0) {
        ports[i].rate = rate, ports[i].delay = delay, ports[i].jitter = jitter, ports[i].loss = loss;
        printf("{}\n");
    } else {
        printf("{\"error\": \"unknown command\"}\n");
    }
    fflush(stdout);
}

/* False at the end of standard input. */
static int read_commands(void) {
    static char text[4096];
    static size_t held;
    ssize_t got = read(0, text + held, sizeof text - held - 1);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    held += got;
    text[held] = 0;
    char *line = text, *end;
    while ((end = strchr(line, '\n'))) {
        *end = 0;
        answer(line);
        line = end + 1;
    }
    held = strlen(line);
    memmove(text, line, held + 1);
    return held < sizeof text - 1;
}

int main(int words, char **word) {
    if (words < 6 || (words - 1) % 5 || (words - 1) / 5 > PORTS) {
        fprintf(stderr, "switch FD RATE DELAY JITTER LOSS ..., for 1 to %d ports\n", PORTS);
        return 2;
    }
    count = (words - 1) / 5;
    struct pollfd watched[PORTS + 1];
    for (int i = 0; i < count; i++) {
        char **w = word + 1 + 5 * i;
        ports[i] = (struct port){.fd = atoi(w[0]), .rate = atof(w[1]), .delay = atof(w[2]),
                                 .jitter = atof(w[3]), .loss = atof(w[4])};
        watched[i] = (struct pollfd){.fd = ports[i].fd, .events = POLLIN};
    }
    watched[count] = (struct pollfd){.fd = 0, .events = POLLIN};
    prctl(PR_SET_TIMERSLACK, 1UL);
    srand48(getpid());
    printf("{}\n");
    fflush(stdout);
    static unsigned char frame[HEADER + FRAME];
    for (;;) {
        double at = now(), due = at + 3600;
        for (int i = 0; i < count; i++) {
            deliver(&ports[i], at);
            if (ports[i].first && ports[i].first->due < due) due = ports[i].first->due;
        }
        double wait = larger(0, due - now());
        struct timespec patience = {(time_t)wait, (long)(1e9 * (wait - (time_t)wait))};
        if (ppoll(watched, count + 1, &patience, NULL) < 0 && errno != EINTR) return 1;
        if (watched[count].revents && !read_commands()) return 0;
        for (int i = 0; i < count; i++)
            for (int turn = 0; watched[i].revents & POLLIN && turn < 16; turn++) {
                ssize_t size = recv(ports[i].fd, frame, sizeof frame, MSG_DONTWAIT);
                if (size < HEADER + 14) break;
                forward(i, frame, (int)size, now());
            }
    }
}
