import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Produced;

/**
 * The join as users of Kafka Streams write it: KStream(board), by memberId, with KTable(member), into board-detail.
 *
 * <p>Arguments: bootstrap servers, application id, state folder, threads, standby replicas, guarantee. It
 * says "members N" as it reads them.
 */
public final class KafkaStreamsJoin {
  @JsonIgnoreProperties(ignoreUnknown = true)
  public static final class Member {
    public long id;
    public String nickname;
    public String city;
    public String phone;
  }

  @JsonIgnoreProperties(ignoreUnknown = true)
  public static final class Board {
    public long id;
    public long memberId;
    public String title;
    public String body;
    public String modifiedAt;
    public String createdAt;
  }

  public static final class Detail {
    public long boardId;
    public long memberId;
    public String nickname;
    public String city;
    public String phone;
    public String title;
    public String body;
    public String modifiedAt;
    public String createdAt;

    static Detail of(Board board, Member author) {
      Detail detail = new Detail();
      detail.boardId = board.id;
      detail.memberId = board.memberId;
      detail.nickname = author.nickname;
      detail.city = author.city;
      detail.phone = author.phone;
      detail.title = board.title;
      detail.body = board.body;
      detail.modifiedAt = board.modifiedAt;
      detail.createdAt = board.createdAt;
      return detail;
    }
  }

  private static final ObjectMapper MAPPER = new ObjectMapper();
  private static final Serde<Member> MEMBER = json(Member.class);

  public static void main(String[] arguments) throws Exception {
    Properties properties = new Properties();
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
    properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[3]);
    properties.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, arguments[4]);
    properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[5]);
    properties.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
    properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    properties.put(ProducerConfig.ACKS_CONFIG, "all");
    properties.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, "snappy");

    StreamsBuilder builder = new StreamsBuilder();
    LongAdder read = new LongAdder();
    Serde<Member> counted = Serdes.serdeFrom(MEMBER.serializer(), (topic, bytes) -> {
      read.increment();
      return MEMBER.deserializer().deserialize(topic, bytes);
    });
    KTable<String, Member> members = builder.table("member", Consumed.with(Serdes.String(), counted));
    builder.stream("board", Consumed.with(Serdes.String(), json(Board.class)))
        .selectKey((id, board) -> Long.toString(board.memberId))
        .join(members, Detail::of, Joined.with(Serdes.String(), json(Board.class), json(Member.class)))
        .selectKey((memberId, detail) -> Long.toString(detail.boardId))
        .to("board-detail", Produced.with(Serdes.String(), json(Detail.class)));

    KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
    CountDownLatch closed = new CountDownLatch(1);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      streams.close(Duration.ofSeconds(10));
      closed.countDown();
    }));
    streams.start();
    while (!closed.await(500, TimeUnit.MILLISECONDS)) {
      System.out.println("members " + read.sum());
    }
  }

  private static <T> Serde<T> json(Class<T> type) {
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return value == null ? null : MAPPER.writeValueAsBytes(value);
          } catch (IOException e) {
            throw new UncheckedIOException(e);
          }
        },
        (topic, bytes) -> {
          try {
            return bytes == null ? null : MAPPER.readValue(bytes, type);
          } catch (IOException e) {
            throw new UncheckedIOException(e);
          }
        });
  }
}
