package io.kquota.reporter;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.Map;

/**
 * The clients of all users, and which of them have something to send. Only for the reporter's thread.
 *
 * Clients can make up client-ids. So a user has room for some clients with a sum of their own. All its others share one
 * sum, under the client-id {@link #OTHERS}: no usage is left out, and no other user loses anything. Where there is no
 * room, clients that have been quiet make it, and a client of the shared sum that is active gets a sum of its own.
 */
final class Clients {
    static final String OTHERS = "<others>";
    /** Clients of one user that have a sum of their own. */
    static final int MOST_OF_USER = 10_000;
    /** What the names of these clients take in events. */
    static final int MOST_NAME_CHARS = 2 << 20;
    /** A client without usage for so many rounds makes room. */
    static final int QUIET_ROUNDS = 40;
    /** The most bytes of UTF-8 that a reader of usage events accepts in a name; the rest of a longer name is cut off. */
    static final int LONGEST_NAME_BYTES = 32_767;
    private static final int ROUNDS_BETWEEN_SEARCHES = 4;

    private static final class User {
        /** By client-id. The shared sum is one of them. */
        final Map<String, Client> clients = new HashMap<>();
        int nameChars;
        long searchedInRound = -ROUNDS_BETWEEN_SEARCHES;

        boolean hasRoom() {
            return clients.size() < MOST_OF_USER && nameChars < MOST_NAME_CHARS;
        }
    }

    private final Map<String, User> users = new HashMap<>();
    private final LinkedHashSet<Client> unsent = new LinkedHashSet<>();
    final String brokerId;
    /** What has the time of requests that Kafka charges to no client. */
    final Client exempt;
    private long round;
    private int size;
    private int summedSensors;

    /** brokerId: of the broker whose sensors these are. ownUser: of the reporter; it has the exempt time. */
    Clients(String brokerId, String ownUser) {
        this.brokerId = brokerId;
        this.exempt = new Client(cut(ownUser), "", brokerId, true);
    }

    /** How many clients there are; a shared sum counts as one. */
    int size() {
        return size;
    }

    /** How many sensors have their usage in a shared sum. */
    int summedSensors() {
        return summedSensors;
    }

    boolean hasUnsent() {
        return !unsent.isEmpty();
    }

    /** A round is one look at the sensors. */
    void beginRound() {
        round++;
    }

    /** The client of these names, or the shared sum of its user if there is no room. */
    Client of(String anyUser, String anyClientId) {
        String user = cut(anyUser), clientId = cut(anyClientId);
        User known = users.computeIfAbsent(user, name -> new User());
        Client client = known.clients.get(clientId);
        if (client != null) return client;
        if (known.hasRoom() || makeRoom(known)) return add(known, user, clientId);
        return othersOf(known, user);
    }

    /** Count a sensor of a client, or one less. A client without sensors is forgotten once all of it is sent. */
    void countSensor(Client client, int kind, int difference) {
        client.sensors += difference;
        if (kind == Client.REQUEST_TIME) client.requestSensors += difference;
        if (client.isShared()) summedSensors += difference;
        forgetIfDone(client);
    }

    /** Add what was recorded into a sensor of a client. */
    void record(Client client, int kind, double value, long count, long nowMs) {
        client.usedInRound = round;
        client.add(kind, value, count, nowMs);
        queue(client);
    }

    /** The next event to send, of the client that waits longest; null if there is none. */
    Client.Event nextEvent() {
        Iterator<Client> waiting = unsent.iterator();
        if (!waiting.hasNext()) return null;
        Client client = waiting.next();
        waiting.remove();
        Client.Event event = client.take();
        queue(client);
        forgetIfDone(client);
        return event;
    }

    /** Put back what was not stored. */
    void putBack(Client.Event event) {
        Client former = event.client;
        Client client = former.isForgotten ? of(former.user, former.clientId) : former;
        client.putBack(event);
        queue(client);
    }

    /** Put back an event that is too large to be stored, under shorter names; false if it had them. */
    boolean putBackShorter(Client.Event event) {
        Client former = event.client;
        if (former.isShared() || former.isExempt) return false;
        Client shared = othersOf(users.computeIfAbsent(former.user, name -> new User()), former.user);
        shared.putBack(event);
        queue(shared);
        return true;
    }

    private Client othersOf(User user, String name) {
        Client known = user.clients.get(OTHERS);
        return known != null ? known : add(user, name, OTHERS);
    }

    private Client add(User user, String name, String clientId) {
        Client client = new Client(name, clientId, brokerId, false);
        client.usedInRound = round;
        user.clients.put(clientId, client);
        user.nameChars += client.nameChars();
        size++;
        return client;
    }

    /** Let the quiet clients of a user go into its shared sum; whether there is room now. */
    private boolean makeRoom(User user) {
        if (round - user.searchedInRound < ROUNDS_BETWEEN_SEARCHES) return false;
        user.searchedInRound = round;
        Client[] quiet = user.clients.values().stream()
                .filter(client -> !client.isShared() && round - client.usedInRound >= QUIET_ROUNDS)
                .toArray(Client[]::new);
        for (Client client : quiet) {
            forget(user, client);
            if (!client.hasAny()) continue;
            Client shared = othersOf(user, client.user);
            shared.takeOver(client);
            queue(shared);
        }
        return user.hasRoom();
    }

    private void queue(Client client) {
        if (client.canSend()) unsent.add(client);
    }

    private void forgetIfDone(Client client) {
        if (client.sensors > 0 || client.isForgotten || client.isExempt || unsent.contains(client)) return;
        User user = users.get(client.user);
        forget(user, client);
        if (user.clients.isEmpty()) users.remove(client.user);
    }

    private void forget(User user, Client client) {
        client.isForgotten = true;
        user.clients.remove(client.clientId);
        user.nameChars -= client.nameChars();
        unsent.remove(client);
        size--;
    }

    /** A name, without the characters at its end that are too much. */
    private static String cut(String name) {
        if (name.length() <= LONGEST_NAME_BYTES / 3) return name;
        byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
        if (bytes.length <= LONGEST_NAME_BYTES) return name;
        int end = LONGEST_NAME_BYTES;
        while ((bytes[end] & 0xC0) == 0x80) end--; // not within a character
        return new String(bytes, 0, end, StandardCharsets.UTF_8);
    }
}
