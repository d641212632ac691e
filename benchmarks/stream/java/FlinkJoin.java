import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The join as users of Flink write it: two keyed streams, the newest member in state, boards waiting for their author.
 *
 * <p>Arguments: bootstrap servers, application id, state folder, parallelism, state backend (hashmap or rocksdb),
 * guarantee (at_least_once or exactly_once).
 */
public final class FlinkJoin {
  @JsonIgnoreProperties(ignoreUnknown = true)
  public static class Member {
    public long id;
    public String nickname;
    public String city;
    public String phone;
  }

  @JsonIgnoreProperties(ignoreUnknown = true)
  public static class Board {
    public long id;
    public long memberId;
    public String title;
    public String body;
    public String modifiedAt;
    public String createdAt;
  }

  public static class Detail {
    public long boardId;
    public long memberId;
    public String nickname;
    public String city;
    public String phone;
    public String title;
    public String body;
    public String modifiedAt;
    public String createdAt;
  }

  public static void main(String[] arguments) throws Exception {
    String bootstrap = arguments[0];
    String application = arguments[1];
    DeliveryGuarantee guarantee = DeliveryGuarantee.valueOf(arguments[5].toUpperCase());
    Configuration configuration = new Configuration();
    configuration.setString("state.backend.type", arguments[4]);
    configuration.setString("execution.checkpointing.dir", "file://" + arguments[2]);
    // readers of committed records wait for the next checkpoint
    boolean isExactlyOnce = guarantee == DeliveryGuarantee.EXACTLY_ONCE;
    configuration.setString("execution.checkpointing.interval", isExactlyOnce ? "1 s" : "10 s");
    configuration.setString("execution.checkpointing.incremental", "true");
    configuration.setString("pipeline.object-reuse", "true");
    configuration.setString("taskmanager.memory.managed.size", "512m");
    configuration.setString("taskmanager.memory.network.min", "128m");
    configuration.setString("taskmanager.memory.network.max", "128m");
    configuration.setString("rest.bind-port", "0");
    int parallelism = Integer.parseInt(arguments[3]);
    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);

    Properties producer = new Properties();
    producer.setProperty("acks", "all");
    producer.setProperty("compression.type", "snappy");
    producer.setProperty("linger.ms", "20");
    producer.setProperty("batch.size", "131072");
    producer.setProperty("transaction.timeout.ms", "600000"); // the sink's default is above the broker's maximum
    KafkaSink<Detail> sink = KafkaSink.<Detail>builder()
        .setBootstrapServers(bootstrap)
        .setKafkaProducerConfig(producer)
        .setRecordSerializer(new ToRecord())
        .setDeliveryGuarantee(guarantee)
        .setTransactionalIdPrefix(application)
        .build();

    DataStream<Member> members = read(environment, bootstrap, application, "member", Member.class);
    read(environment, bootstrap, application, "board", Board.class)
        .keyBy(board -> board.memberId, Types.LONG)
        .connect(members.keyBy(member -> member.id, Types.LONG))
        .process(new WithAuthor())
        .returns(Detail.class)
        .sinkTo(sink);
    environment.execute(application);
  }

  private static <T> DataStream<T> read(
      StreamExecutionEnvironment environment, String bootstrap, String group, String topic, Class<T> type) {
    KafkaSource<T> source = KafkaSource.<T>builder()
        .setBootstrapServers(bootstrap)
        .setTopics(topic)
        .setGroupId(group)
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setValueOnlyDeserializer(new FromJson<>(type))
        .build();
    return environment.fromSource(source, WatermarkStrategy.noWatermarks(), topic);
  }

  /** A board whose author is not known yet stays in state until the author comes. */
  public static class WithAuthor extends KeyedCoProcessFunction<Long, Board, Member, Detail> {
    private transient ValueState<Member> author;
    private transient ListState<Board> waiting;

    @Override
    public void open(OpenContext context) {
      author = getRuntimeContext().getState(new ValueStateDescriptor<>("author", Member.class));
      waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("waiting", Board.class));
    }

    @Override
    public void processElement1(Board board, Context context, Collector<Detail> out) throws Exception {
      Member known = author.value();
      if (known == null) {
        waiting.add(board);
      } else {
        out.collect(detail(board, known));
      }
    }

    @Override
    public void processElement2(Member member, Context context, Collector<Detail> out) throws Exception {
      boolean isNew = author.value() == null;
      author.update(member);
      if (!isNew) {
        return;
      }
      for (Board board : waiting.get()) {
        out.collect(detail(board, member));
      }
      waiting.clear();
    }

    private static Detail detail(Board board, Member member) {
      Detail detail = new Detail();
      detail.boardId = board.id;
      detail.memberId = board.memberId;
      detail.nickname = member.nickname;
      detail.city = member.city;
      detail.phone = member.phone;
      detail.title = board.title;
      detail.body = board.body;
      detail.modifiedAt = board.modifiedAt;
      detail.createdAt = board.createdAt;
      return detail;
    }
  }

  /** A value as an object. */
  public static class FromJson<T> implements DeserializationSchema<T> {
    private final Class<T> type;
    private transient ObjectMapper mapper;

    FromJson(Class<T> type) {
      this.type = type;
    }

    @Override
    public T deserialize(byte[] bytes) throws IOException {
      if (mapper == null) {
        mapper = new ObjectMapper();
      }
      return bytes == null ? null : mapper.readValue(bytes, type);
    }

    @Override
    public boolean isEndOfStream(T value) {
      return false;
    }

    @Override
    public TypeInformation<T> getProducedType() {
      return TypeInformation.of(type);
    }
  }

  /** A detail as a record, keyed by the board's id. */
  public static class ToRecord implements KafkaRecordSerializationSchema<Detail> {
    private transient ObjectMapper mapper;

    @Override
    public ProducerRecord<byte[], byte[]> serialize(Detail detail, KafkaSinkContext context, Long timestamp) {
      if (mapper == null) {
        mapper = new ObjectMapper();
      }
      try {
        byte[] key = Long.toString(detail.boardId).getBytes(StandardCharsets.UTF_8);
        return new ProducerRecord<>("board-detail", key, mapper.writeValueAsBytes(detail));
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }
}
