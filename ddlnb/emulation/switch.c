/* A network of links in user space: every packet passes all links of its route, one after the other.
 *
 *     switch TEXT HOSTS LINKS  FD HOST LINK [FD HOST LINK ...]
 *
 * TEXT is an inherited file with commands (below) that make the network before it starts. A link is
 * one direction of a cable. FD is an inherited AF_PACKET socket (with virtio headers) on a port of
 * the switch: what HOST sends into it enters the network, and what arrives for HOST over LINK leaves
 * by it. Host i has the hardware address 02:00:00:00:HI:LO of i, on all of its ports.
 *
 * A link passes packets in the order in which they come and one at a time; RATE is in bytes per
 * second and counts every byte on the wire. DELAY are the seconds that a byte takes along the link,
 * JITTER the most that is added to them, LOSS the chance of a packet to be lost on it. A packet may
 * enter a link while it is still arriving (cut-through), as late as it can without a gap in it: the
 * packet stands for several of the wire, between which those of others would pass.
 *
 * Commands come by standard input, a line each; every one is answered by a line:
 *     link L RATE DELAY JITTER LOSS
 *     route A B L L ...    one more route from host A to host B; a flow keeps to one of them
 *     forget               all routes
 *     cut L                link L loses everything; flows take the routes that are left
 *     restore L            until now
 *     stats                {"packets": ..., "bytes": ..., "dropped": ..., "lost": ..., "late": ...}
 *     carried              [bytes that entered link 0, link 1, ...]
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

enum { PORTS = 1024, FRAME = 66000, HEADER = sizeof(struct virtio_net_hdr), ETHERNET = 14, LINE = 4096 };
static const double QUEUE_SECONDS = 1.0;    /* of waiting in front of a link */
static const double QUEUE_BYTES = 4 << 20;  /* at least, however slow the link is */
static const int FRAMING = 24;              /* preamble, checksum and gap of an Ethernet frame */
static const int FORWARDING = 14 + 20 + 32; /* headers that every further segment repeats */

struct link {
    double rate, delay, jitter, loss;
    double free, last; /* when it has passed all bytes so far; when the last packet left it */
    uint64_t carried;
    int cut, port;
};

struct route {
    struct route *next; /* another one for the same pair of hosts */
    int count, links[];
};

struct packet {
    const struct route *route;
    double due; /* when it enters its next link, or leaves the network */
    uint64_t number;
    int passed, size, wire;
    unsigned char data[];
};

struct port {
    int fd, host;
};

static struct port ports[PORTS];
static struct link *links;
static struct route **routes; /* from each host to each host */
static int hosts, link_count, port_count;
static struct packet **heap; /* of packets in the network, the next one that moves first */
static size_t waiting, room;
static uint64_t packets, bytes, dropped, lost, numbered;
static double late_sum, late_worst;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double larger(double a, double b) { return a > b ? a : b; }

static void *need(void *memory) {
    if (!memory) {
        fprintf(stderr, "the switch has no memory left\n");
        exit(1);
    }
    return memory;
}

static int before(const struct packet *a, const struct packet *b) {
    return a->due < b->due || (a->due == b->due && a->number < b->number);
}

static void push(struct packet *packet) {
    if (waiting == room) heap = need(realloc(heap, (room = 2 * room + 64) * sizeof *heap));
    size_t at = waiting++;
    for (; at && before(packet, heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = packet;
}

static struct packet *pop(void) {
    struct packet *first = heap[0], *last = heap[--waiting];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < waiting) {
        if (child + 1 < waiting && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* Bytes on the wire of a packet that the receiver's or sender's stack takes for several. */
static int wire_bytes(const unsigned char *frame, int size) {
    const struct virtio_net_hdr *header = (const void *)frame;
    int length = size - HEADER, segments = 1;
    if (header->gso_type != VIRTIO_NET_HDR_GSO_NONE && header->gso_size > 0 && length > header->hdr_len)
        segments = (length - header->hdr_len + header->gso_size - 1) / header->gso_size;
    return length + (segments - 1) * FORWARDING + segments * FRAMING;
}

/* A number of the connection that the frame belongs to, from its addresses and ports. */
static uint32_t flow_of(const unsigned char *ip, int length) {
    uint32_t hash = 2166136261u;
    int header = 4 * (ip[0] & 15);
    if (length < 20 || ip[0] >> 4 != 4) return 0;
    for (int i = 12; i < 20; i++) hash = (hash ^ ip[i]) * 16777619u;
    for (int i = header; i < header + 4 && i < length; i++) hash = (hash ^ ip[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static int is_whole(const struct route *route) {
    for (int i = 0; i < route->count; i++)
        if (links[route->links[i]].cut) return 0;
    return 1;
}

/* The route of a flow: its own of all routes if that is whole, else one of those that are. */
static const struct route *choose(const struct route *first, uint32_t flow) {
    int all = 0, whole = 0;
    const struct route *route;
    for (route = first; route; route = route->next) all++, whole += is_whole(route);
    if (!whole) return NULL;
    int turn = flow % all;
    for (route = first; turn; route = route->next) turn--;
    if (is_whole(route)) return route;
    turn = flow % whole;
    for (route = first; !is_whole(route) || turn; route = route->next) turn -= is_whole(route);
    return route;
}

/* Let the packet pass its next link; it is due when it can enter the one after that. */
static int enter(struct packet *packet) {
    const struct route *route = packet->route;
    struct link *link = &links[route->links[packet->passed++]];
    double backlog = link->free - packet->due;
    if (link->cut) {
        lost++;
        return 0;
    }
    if (backlog > QUEUE_SECONDS && backlog * link->rate > QUEUE_BYTES) {
        dropped++;
        return 0;
    }
    double start = larger(packet->due, link->free);
    link->free = start + packet->wire / link->rate;
    link->carried += packet->wire;
    if (link->loss > 0 && drand48() < link->loss) {
        lost++;
        return 0;
    }
    double way = link->delay + (link->jitter > 0 ? link->jitter * drand48() : 0);
    double due = link->free + way; /* its last byte is there */
    if (packet->passed < route->count)
        due = larger(start + way, due - packet->wire / links[route->links[packet->passed]].rate);
    packet->due = link->last = larger(due, link->last);
    return 1;
}

static void leave(struct packet *packet, double at) {
    double late = at - packet->due;
    late_sum += late;
    if (late > late_worst) late_worst = late;
    packets++;
    bytes += packet->wire;
    const struct port *port = &ports[links[packet->route->links[packet->route->count - 1]].port];
    if (send(port->fd, packet->data, packet->size, MSG_DONTWAIT) < 0) dropped++;
}

/* Move all packets that are due. */
static void advance(double at) {
    while (waiting && heap[0]->due <= at) {
        struct packet *packet = pop();
        if (packet->passed < packet->route->count) {
            if (enter(packet)) {
                push(packet);
                continue;
            }
        } else {
            leave(packet, at);
        }
        free(packet);
    }
}

static void receive(int host, const unsigned char *frame, int size, double at) {
    const unsigned char *to = frame + HEADER;
    int target = to[4] << 8 | to[5];
    if (to[0] != 2 || to[1] || to[2] || to[3] || target >= hosts) return;
    int wire = wire_bytes(frame, size);
    const struct route *route =
        choose(routes[host * hosts + target], flow_of(to + ETHERNET, size - HEADER - ETHERNET));
    if (!route) {
        lost++;
        return;
    }
    struct packet *packet = need(malloc(sizeof *packet + size));
    *packet = (struct packet){.route = route, .due = at, .number = numbered++, .size = size, .wire = wire};
    memcpy(packet->data, frame, size);
    push(packet);
}

static int add_route(char *text) {
    int from, to, got, path[LINE / 2], count = 0;
    if (sscanf(text, "%d %d%n", &from, &to, &got) != 2 || from < 0 || from >= hosts || to < 0 || to >= hosts)
        return 0;
    for (char *word = text + got; sscanf(word, "%d%n", &path[count], &got) == 1; word += got, count++)
        if (path[count] < 0 || path[count] >= link_count) return 0;
    if (!count) return 0;
    /* Never freed: packets on their way may still follow it. */
    struct route *route = need(malloc(sizeof *route + count * sizeof *path)), **last = &routes[from * hosts + to];
    route->next = NULL;
    route->count = count;
    memcpy(route->links, path, count * sizeof *path);
    while (*last) last = &(*last)->next;
    *last = route;
    return 1;
}

/* False for a line that makes no sense. */
static int change(char *line) {
    int i;
    double rate, delay, jitter, loss;
    if (!strncmp(line, "route ", 6)) return add_route(line + 6);
    if (!strcmp(line, "forget")) {
        memset(routes, 0, (size_t)hosts * hosts * sizeof *routes);
        return 1;
    }
    if (sscanf(line, "link %d %lf %lf %lf %lf", &i, &rate, &delay, &jitter, &loss) == 5) {
        if (i < 0 || i >= link_count || !(rate > 0)) return 0;
        struct link *link = &links[i];
        link->rate = rate, link->delay = delay, link->jitter = jitter, link->loss = loss;
        return 1;
    }
    int cut = sscanf(line, "cut %d", &i) == 1;
    if ((!cut && sscanf(line, "restore %d", &i) != 1) || i < 0 || i >= link_count) return 0;
    links[i].cut = cut;
    return 1;
}

static void answer(char *line) {
    if (!strcmp(line, "stats")) {
        printf("{\"packets\": %llu, \"bytes\": %llu, \"dropped\": %llu, \"lost\": %llu, \"late\": %.9f, \"worst\": %.9f}\n",
               (unsigned long long)packets, (unsigned long long)bytes, (unsigned long long)dropped,
               (unsigned long long)lost, packets ? late_sum / packets : 0.0, late_worst);
    } else if (!strcmp(line, "carried")) {
        for (int i = 0; i < link_count; i++) printf("%s%llu", i ? ", " : "[", (unsigned long long)links[i].carried);
        printf("]\n");
    } else {
        printf(change(line) ? "{}\n" : "{\"error\": \"unknown command\"}\n");
    }
    fflush(stdout);
}

/* False at the end of standard input. */
static int read_commands(void) {
    static char text[LINE];
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

/* Make the network that the command line and the text describe. */
static int make(int words, char **word) {
    if (words < 7 || (words - 4) % 3 || (words - 4) / 3 > PORTS) return 0;
    hosts = atoi(word[2]);
    link_count = atoi(word[3]);
    port_count = (words - 4) / 3;
    if (hosts < 1 || link_count < 1) return 0;
    links = need(calloc(link_count, sizeof *links));
    routes = need(calloc((size_t)hosts * hosts, sizeof *routes));
    for (int i = 0; i < port_count; i++) {
        char **w = word + 4 + 3 * i;
        int arriving = atoi(w[2]);
        ports[i] = (struct port){.fd = atoi(w[0]), .host = atoi(w[1])};
        if (arriving < 0 || arriving >= link_count) return 0;
        links[arriving].port = i;
    }
    FILE *text = fdopen(atoi(word[1]), "r");
    char line[LINE];
    while (text && fgets(line, sizeof line, text)) {
        line[strcspn(line, "\n")] = 0;
        if (!change(line)) return 0;
    }
    return text && !fclose(text);
}

int main(int words, char **word) {
    if (!make(words, word)) {
        fprintf(stderr, "switch TEXT HOSTS LINKS FD HOST LINK ..., for 1 to %d ports\n", PORTS);
        return 2;
    }
    static struct pollfd watched[PORTS + 1];
    for (int i = 0; i < port_count; i++) watched[i] = (struct pollfd){.fd = ports[i].fd, .events = POLLIN};
    watched[port_count] = (struct pollfd){.fd = 0, .events = POLLIN};
    prctl(PR_SET_TIMERSLACK, 1UL);
    srand48(getpid());
    printf("{}\n");
    fflush(stdout);
    static unsigned char frame[HEADER + FRAME];
    for (;;) {
        advance(now());
        double wait = waiting ? larger(0, heap[0]->due - now()) : 3600;
        struct timespec patience = {(time_t)wait, (long)(1e9 * (wait - (time_t)wait))};
        if (ppoll(watched, port_count + 1, &patience, NULL) < 0 && errno != EINTR) return 1;
        if (watched[port_count].revents && !read_commands()) return 0;
        for (int i = 0; i < port_count; i++)
            for (int turn = 0; watched[i].revents & POLLIN && turn < 16; turn++) {
                ssize_t size = recv(ports[i].fd, frame, sizeof frame, MSG_DONTWAIT);
                if (size < HEADER + ETHERNET) break;
                double at = now();
                advance(at);
                receive(ports[i].host, frame, (int)size, at);
            }
    }
}
