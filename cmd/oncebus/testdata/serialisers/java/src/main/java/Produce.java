import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Label;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Type;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Timestamp;
import com.google.protobuf.TimestampProto;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serializer;

/**
 * Writes orders with the serialisers of Apicurio Registry.
 *
 * <p>java Produce BROKERS REGISTRY TOPIC FORMAT VERSION FROM TO
 *
 * <p>FORMAT is avro, protobuf or json_schema. VERSION 2 of a schema has another order, wider types and more fields; the orders FROM up to TO
 * have the same account, id and time in both. It registers the schema and prints "registered", and writes when it has read a line.
 */
public class Produce {
    static final long START = Instant.parse("2026-01-01T00:00:00Z").toEpochMilli();

    static final String AMOUNT = "{\"name\":\"amount\",\"type\":{\"type\":\"bytes\",\"logicalType\":\"decimal\",\"precision\":18,\"scale\":%d}}";
    static final String TIME = "{\"name\":\"at\",\"type\":{\"type\":\"long\",\"logicalType\":\"timestamp-millis\"}}";
    static final String ACCOUNT = "{\"name\":\"account\",\"type\":\"string\"}";

    /** The values of one format. */
    interface Orders<T> {
        T order(int i, String account, long at);
    }

    /** Serialises the order i. */
    interface Encoder {
        byte[] encode(int i);
    }

    static <T> Encoder with(Serializer<T> serializer, Map<String, ?> config, String topic, Orders<T> orders) {
        serializer.configure(config, false);
        return i -> serializer.serialize(topic, orders.order(i, "acct-" + i % 997, START + i));
    }

    static Orders<GenericData.Record> avro(int version) {
        String fields = version == 1
            ? String.join(",", ACCOUNT, "{\"name\":\"id\",\"type\":\"int\"}", TIME, AMOUNT.formatted(2))
            : String.join(",", "{\"name\":\"note\",\"type\":[\"null\",\"string\"],\"default\":null}", AMOUNT.formatted(4), TIME,
                "{\"name\":\"id\",\"type\":[\"null\",\"long\"]}", ACCOUNT);
        Schema schema = new Schema.Parser().parse("{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"shop\",\"fields\":[" + fields + "]}");
        return (i, account, at) -> {
            GenericData.Record order = new GenericData.Record(schema);
            order.put("account", account);
            order.put("at", at);
            long cents = i % 10000;
            if (version == 1) {
                order.put("id", i);
                order.put("amount", ByteBuffer.wrap(BigInteger.valueOf(cents).toByteArray()));
            } else {
                order.put("id", (long) i);
                order.put("amount", ByteBuffer.wrap(BigInteger.valueOf(cents * 100).toByteArray()));
                order.put("note", "again");
            }
            return order;
        };
    }

    static FieldDescriptorProto field(String name, int number, Type type) {
        return FieldDescriptorProto.newBuilder().setName(name).setNumber(number).setType(type).setLabel(Label.LABEL_OPTIONAL).build();
    }

    static Orders<DynamicMessage> protobuf(int version) throws Exception {
        DescriptorProto.Builder order = DescriptorProto.newBuilder().setName("Order");
        if (version == 2) order.addField(field("note", 9, Type.TYPE_STRING));
        order.addField(field("account", 1, Type.TYPE_STRING)).addField(field("id", 2, version == 1 ? Type.TYPE_INT32 : Type.TYPE_INT64))
            .addField(field("at", 3, Type.TYPE_MESSAGE).toBuilder().setTypeName(".google.protobuf.Timestamp"));
        FileDescriptorProto file = FileDescriptorProto.newBuilder().setName("order" + version + ".proto").setPackage("shop").setSyntax("proto3")
            .addDependency("google/protobuf/timestamp.proto")
            // so that Order is not the first message of the file
            .addMessageType(DescriptorProto.newBuilder().setName("Other").addField(field("x", 1, Type.TYPE_STRING)))
            .addMessageType(order).build();
        Descriptor type = FileDescriptor.buildFrom(file, new FileDescriptor[] {TimestampProto.getDescriptor()}).findMessageTypeByName("Order");
        return (i, account, at) -> {
            DynamicMessage.Builder value = DynamicMessage.newBuilder(type).setField(type.findFieldByName("account"), account);
            value.setField(type.findFieldByName("id"), version == 1 ? (Object) i : (Object) (long) i);
            Timestamp time = Timestamp.newBuilder().setSeconds(at / 1000).setNanos((int) (at % 1000) * 1_000_000).build();
            value.setField(type.findFieldByName("at"), time);
            if (version == 2) value.setField(type.findFieldByName("note"), "again");
            return value.build();
        };
    }

    static Orders<JsonNode> json(int version) {
        ObjectMapper mapper = new ObjectMapper();
        return (i, account, at) -> {
            ObjectNode value = mapper.createObjectNode();
            // With three digits, as the other program writes it: JSON has no type for times.
            String time = Instant.ofEpochMilli(at).toString();
            if (version == 2) value.put("note", "again");
            return value.put("id", i).put("at", time.contains(".") ? time : time.replace("Z", ".000Z")).put("account", account);
        };
    }

    public static void main(String[] args) throws Exception {
        String topic = args[2];
        int version = Integer.parseInt(args[4]);
        int from = Integer.parseInt(args[5]);
        int to = Integer.parseInt(args[6]);
        Map<String, Object> config = Map.of("apicurio.registry.url", args[1], "apicurio.registry.auto-register", "true",
            "apicurio.registry.check-period-ms", "3600000", "apicurio.registry.artifact.schema.location", "order" + version + ".json",
            "apicurio.registry.serde.validation-enabled", "false",
            // The message type as Confluent's serialisers write it.
            "apicurio.registry.serde.send-type-ref", "false", "apicurio.registry.serde.send-indexes", "true");
        Encoder orders = switch (args[3]) {
            case "avro" -> with(new AvroKafkaSerializer<>(), config, topic, avro(version));
            case "protobuf" -> with(new ProtobufKafkaSerializer<>(), config, topic, protobuf(version));
            case "json_schema" -> with(new JsonSchemaKafkaSerializer<>(), config, topic, json(version));
            default -> throw new IllegalArgumentException("no format " + args[3]);
        };
        orders.encode(from); // registers the schema
        System.out.println("registered");
        if (System.in.read() < 0) System.exit(0);
        AtomicReference<Exception> failed = new AtomicReference<>();
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "linger.ms", 20);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = from; i < to; i++) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(i).getBytes(), orders.encode(i)), (written, error) -> failed.compareAndSet(null, error));
            }
        }
        if (failed.get() != null) throw failed.get();
        System.exit(0); // the serialisers' threads go on
    }
}
