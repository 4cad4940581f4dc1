"""Writes orders with the serialisers of confluent-kafka.

python produce.py BROKERS REGISTRY TOPIC FORMAT VERSION FROM TO

FORMAT is avro, protobuf or json_schema. VERSION 2 of a schema has another order, wider types and more fields; the orders FROM up to TO
have the same account, id and time in both. It registers the schema and prints "registered", and writes when it has read a line.
"""

import datetime
import decimal
import json
import sys

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)

ACCOUNT = {"name": "account", "type": "string"}
TIME = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}


def amount(scale):
    return {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": scale}}


AVRO = {
    1: [ACCOUNT, {"name": "id", "type": "int"}, TIME, amount(2)],
    2: [{"name": "note", "type": ["null", "string"], "default": None}, amount(4), TIME, {"name": "id", "type": ["null", "long"]}, ACCOUNT],
}


def avro(registry, version):
    serialise = AvroSerializer(registry, json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": AVRO[version]}))

    def order(i, account, at):
        value = {"account": account, "id": i, "at": at, "amount": decimal.Decimal(i % 10000).scaleb(-2)}
        if version == 2:
            value["note"] = "again"
        return value

    return serialise, order


def message(version):
    """Returns the class of a message, as protoc would generate it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"order{version}.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    other = file.message_type.add(name="Other")  # so that Order is not the first message of the file
    other.field.add(name="x", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    fields = [
        {"name": "account", "number": 1, "type": field.TYPE_STRING},
        {"name": "id", "number": 2, "type": field.TYPE_INT32},
        {"name": "at", "number": 3, "type": field.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"},
    ]
    if version == 2:
        fields[1]["type"] = field.TYPE_INT64
        fields.insert(0, {"name": "note", "number": 9, "type": field.TYPE_STRING})
    order = file.message_type.add(name="Order")
    for f in fields:
        order.field.add(label=field.LABEL_OPTIONAL, **f)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def protobuf(registry, version):
    order_class = message(version)

    def order(i, account, at):
        value = order_class(account=account, id=i)
        value.at.FromDatetime(at)
        if version == 2:
            value.note = "again"
        return value

    return ProtobufSerializer(order_class, registry, {"use.deprecated.format": False}), order


JSON = {
    1: {"account": {"type": "string"}, "id": {"type": "integer"}, "at": {"type": "string"}},
    2: {"note": {"type": "string"}, "at": {"type": "string"}, "id": {"type": "integer"}, "account": {"type": "string"}},
}


def json_schema(registry, version):
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object", "properties": JSON[version]}

    def order(i, account, at):
        value = {"account": account, "id": i, "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        return {"note": "again", **dict(reversed(value.items()))} if version == 2 else value

    return JSONSerializer(json.dumps(schema), registry), order


def main():
    brokers, registry, topic, name, version, first, last = sys.argv[1:]
    formats = {"avro": avro, "protobuf": protobuf, "json_schema": json_schema}
    serialise, order = formats[name](SchemaRegistryClient({"url": registry}), int(version))
    context = SerializationContext(topic, MessageField.VALUE)

    def value(i):
        return serialise(order(i, f"acct-{i % 997}", START + datetime.timedelta(milliseconds=i)), context)

    value(int(first))  # registers the schema
    print("registered", flush=True)
    if not sys.stdin.readline():
        return
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20})
    failed = []
    for i in range(int(first), int(last)):
        while True:
            try:
                producer.produce(topic, value(i), str(i), on_delivery=lambda error, _: error and failed.append(error))
                break
            except BufferError:
                producer.poll(1)
        producer.poll(0)
    producer.flush()
    if failed:
        sys.exit(f"{len(failed)} not written: {failed[0]}")


main()
