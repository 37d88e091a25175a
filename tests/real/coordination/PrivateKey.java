import java.io.FileInputStream;
import java.security.KeyStore;
import java.util.Base64;

/** Prints the private key of a PKCS12 store as PEM, which keytool itself does not do. */
public class PrivateKey {
    public static void main(String[] arguments) throws Exception {
        char[] password = arguments[1].toCharArray();
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            store.load(file, password);
        }
        byte[] key = store.getKey(store.aliases().nextElement(), password).getEncoded();
        System.out.println("-----BEGIN PRIVATE KEY-----");
        System.out.println(Base64.getMimeEncoder(64, "\n".getBytes()).encodeToString(key));
        System.out.println("-----END PRIVATE KEY-----");
    }
}
