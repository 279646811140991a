// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Sends packets over two racks and a core with ns-3 (GPL-2.0-only). Prints, as JSON, the CPU time
// of the simulation without its set-up, and the packets that arrived at each end of each link.
//
// Every link carries in each direction as many packets as in an all-reduce: one a chunk. But
// nothing sums: the first hosts of both racks send to each other, the others in a circle within
// their rack. As results do in an all-reduce, a packet that arrives releases the receiver's next.
//
// udp: sockets, IPv4 and static routes, without ns-3's queue discs and payloads, which cost more.
// devices: no stack; switches hand packets from device to device. The least that ns-3's links cost.

#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#if __has_include(<ns3/version-defines.h>)  // only builds that know their version have it
#include <ns3/version-defines.h>
#endif

#include <sys/resource.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>

using namespace ns3;

namespace {

constexpr unsigned RACKS = 2, HOSTS = 4, PORT = 9;

#ifdef NS3_VERSION_MAJOR
const auto VERSION = std::to_string(NS3_VERSION_MAJOR) + "." + std::to_string(NS3_VERSION_MINOR);
#else
const std::string VERSION = "unknown";
#endif

struct Load {
    bool devices;
    uint32_t chunks, window, bytes;
};

// A host that sends a packet for each one that arrives, until all are sent.
struct Host {
    const Load *load;
    std::function<void(Ptr<Packet>)> send;
    uint32_t sent = 0;

    void Next()
    {
        if (sent < load->chunks) {
            sent++;
            send(Create<Packet>(load->bytes));
        }
    }
    void Begin()
    {
        for (uint32_t n = 0; n < load->window; n++) Next();
    }
    void Drain(Ptr<Socket> socket)
    {
        while (socket->Recv()) Next();
    }
    bool Take(Ptr<NetDevice>, Ptr<const Packet>, uint16_t, const Address &)
    {
        Next();
        return true;
    }
};

// Passes on all packets of a device.
struct Crossing {
    Ptr<NetDevice> to;

    bool Take(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t protocol, const Address &)
    {
        return to->Send(packet->Copy(), to->GetBroadcast(), protocol);
    }
};

// A link with an end above and one below.
struct Link {
    Ptr<NetDevice> below, above;
    Ipv4Address addressBelow, addressAbove;
};

void Count(uint64_t *arrived, Ptr<const Packet>)
{
    ++*arrived;
}

double CpuSeconds()
{
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    auto seconds = [](const timeval &time) { return time.tv_sec + 1e-6 * time.tv_usec; };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void AddRoute(Ptr<Node> node, Ipv4Address to, const char *mask, Ipv4Address next, Ptr<NetDevice> by)
{
    auto ipv4 = node->GetObject<Ipv4>();
    Ipv4StaticRoutingHelper().GetStaticRouting(ipv4)->AddNetworkRouteTo(
        to, Ipv4Mask(mask), next, ipv4->GetInterfaceForDevice(by));
}

// The whole network of one measurement.
class Network {
public:
    Network(const Load &load, uint64_t rate, uint64_t delay, uint32_t queue) : m_load(load)
    {
        m_links.SetDeviceAttribute("DataRate", DataRateValue(DataRate(rate)));
        m_links.SetChannelAttribute("Delay", TimeValue(PicoSeconds(delay)));
        m_links.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize",
                         QueueSizeValue(QueueSize(QueueSizeUnit::BYTES, queue)));
        m_links.DisableFlowControl();  // so that no queue discs are installed

        NodeContainer hosts(RACKS * HOSTS), switches(RACKS + 1);
        if (!load.devices) {
            Ipv4StaticRoutingHelper routing;
            InternetStackHelper stack;
            stack.SetRoutingHelper(routing);
            stack.SetIpv6StackInstall(false);
            stack.Install(hosts);
            stack.Install(switches);
        }
        auto core = switches.Get(RACKS);
        for (unsigned rack = 0; rack < RACKS; rack++) {
            auto tor = switches.Get(rack);
            auto network = "10." + std::to_string(rack + 1) + ".";
            m_uplinks[rack] = Connect(tor, core, network + "255.0");
            for (unsigned host = 0; host < HOSTS; host++)
                m_down[rack][host] = Connect(hosts.Get(rack * HOSTS + host), tor,
                                             network + std::to_string(host) + ".0");
            if (load.devices) continue;
            const auto &up = m_uplinks[rack];
            AddRoute(tor, "0.0.0.0", "0.0.0.0", up.addressAbove, up.below);
            auto all = network + "0.0";
            AddRoute(core, all.c_str(), "255.255.0.0", up.addressBelow, up.above);
        }
        for (unsigned rack = 0; rack < RACKS; rack++)
            for (unsigned host = 0; host < HOSTS; host++) Equip(rack, host);
    }

    void Run()
    {
        for (auto &rack : m_hosts)
            for (auto &host : rack) Simulator::ScheduleNow(&Host::Begin, &host);
        double began = CpuSeconds();
        Simulator::Run();
        double seconds = CpuSeconds() - began;
        std::printf("{\"version\": \"%s\", \"cpu_seconds\": %.6f, \"arrived\": [", VERSION.c_str(),
                    seconds);
        const char *before = "";
        for (auto one : m_arrived) {
            std::printf("%s%" PRIu64, before, one);
            before = ", ";
        }
        std::printf("]}\n");
    }

private:
    Link Connect(Ptr<Node> below, Ptr<Node> above, const std::string &network)
    {
        auto ends = m_links.Install(below, above);
        for (unsigned end : {0, 1}) {
            m_arrived.push_back(0);
            ends.Get(end)->TraceConnectWithoutContext(
                "PhyRxEnd", MakeBoundCallback(&Count, &m_arrived.back()));
        }
        Link made{ends.Get(0), ends.Get(1), {}, {}};
        if (!m_load.devices) {
            Ipv4AddressHelper addresses(network.c_str(), "255.255.255.0");
            auto given = addresses.Assign(ends);
            made.addressBelow = given.GetAddress(0), made.addressAbove = given.GetAddress(1);
        }
        return made;
    }

    // Sets up what a host sends and receives, and where its ToR and the core pass it on.
    void Equip(unsigned rack, unsigned number)
    {
        auto &host = m_hosts[rack][number];
        const auto &link = m_down[rack][number];
        host.load = &m_load;
        unsigned peer = number ? number % (HOSTS - 1) + 1 : 0;
        const auto &to = m_down[number ? rack : 1 - rack][peer];
        if (m_load.devices) {
            auto device = link.below;
            host.send = [device](Ptr<Packet> packet) {
                device->Send(packet, device->GetBroadcast(), 0x0800);
            };
            device->SetReceiveCallback(MakeCallback(&Host::Take, &host));
            if (number) {
                Cross(link.above, to.above);
            } else {
                const auto &up = m_uplinks[rack], &down = m_uplinks[1 - rack];
                Cross(link.above, up.below);
                Cross(up.above, down.above);
                Cross(down.below, to.above);
            }
            return;
        }
        auto node = link.below->GetNode();
        AddRoute(node, "0.0.0.0", "0.0.0.0", link.addressAbove, link.below);
        auto socket = Socket::CreateSocket(node, UdpSocketFactory::GetTypeId());
        socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
        socket->Connect(InetSocketAddress(to.addressBelow, PORT));
        socket->SetRecvCallback(MakeCallback(&Host::Drain, &host));
        host.send = [socket](Ptr<Packet> packet) { socket->Send(packet); };
    }

    void Cross(Ptr<NetDevice> from, Ptr<NetDevice> to)
    {
        m_crossings.push_back({to});
        from->SetReceiveCallback(MakeCallback(&Crossing::Take, &m_crossings.back()));
    }

    const Load m_load;
    PointToPointHelper m_links;
    std::array<Link, RACKS> m_uplinks;
    std::array<std::array<Link, HOSTS>, RACKS> m_down;
    std::array<std::array<Host, HOSTS>, RACKS> m_hosts;
    std::deque<Crossing> m_crossings;
    std::deque<uint64_t> m_arrived;  // packets at each device
};

}  // namespace

int main(int count, char **arguments)
{
    if (count != 8) {
        std::fprintf(stderr, "usage: ns3 udp|devices CHUNKS WINDOW BYTES BIT/S PS QUEUE-BYTES\n");
        return 2;
    }
    auto number = [arguments](int at) { return std::strtoull(arguments[at], nullptr, 10); };
    Load load{arguments[1] == std::string("devices"), uint32_t(number(2)), uint32_t(number(3)),
              uint32_t(number(4))};
    Network(load, number(5), number(6), number(7)).Run();
    Simulator::Destroy();
}
